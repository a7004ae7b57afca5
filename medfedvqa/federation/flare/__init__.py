"""NVIDIA FLARE as the carrier of messages: the same methods, in its simulator or in a provisioned federation."""
