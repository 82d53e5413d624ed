"""What the coordinators of all group types, of transactions and of share states have in common."""
