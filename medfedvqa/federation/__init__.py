"""Who carries messages between server and sites: this process, or NVIDIA FLARE."""
