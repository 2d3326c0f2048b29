"""What NCCL makes of its environment: names, values, files and its own words about them. A leaf: imports nothing of ours."""
