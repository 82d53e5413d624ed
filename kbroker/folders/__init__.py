"""What lies on disk while nothing runs."""
