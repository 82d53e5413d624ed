"""What the compatibility tests share: brokers, client processes, a proxy that loses answers."""
