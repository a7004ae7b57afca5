"""Carries messages between server and sites, in this process or through NVIDIA FLARE."""
