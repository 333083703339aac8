"""Foreign programs, one file each: how it is launched, what its output holds, and how a file of it is adopted."""
