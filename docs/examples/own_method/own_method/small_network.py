"""A small network over pictures, without a layer that reaches from one picture to another."""

from torch import nn


def build(channels: int, outputs: int, width: int = 16) -> nn.Module:
    """Three convolutions, each followed by group normalisation, then one linear layer for the outputs."""
    layers: list[nn.Module] = []
    for inputs, made in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(inputs, made, 3, stride=2, padding=1), nn.GroupNorm(4, made), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, outputs))
