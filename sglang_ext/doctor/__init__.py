"""What is wrong with this environment, before any server starts: files, metadata and /proc only, neither torch nor sglang."""
