"""A whole fabric: every pair of nodes measured, and what stands out named."""
