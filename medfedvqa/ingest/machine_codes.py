"""Finds QR codes and bar codes, which machines read and a text finder finds by luck alone."""

import cv2
import numpy as np

Array = np.ndarray
TWO_LEVELS = 0.6
"""Codes are black and white: their pixels lie, on average, this far from the middle grey towards either end. OpenCV's
finders take teeth and ribs for codes, too, which are not."""
LEAST_SIDE = 12


def code_corners(picture: Array) -> list[Array]:
    """The corners of each code in a picture, uint8 [height, width], as float32 [4, 2] in its pixels."""
    quadrangles = []
    for view in (picture, 255 - picture):
        for finder in (cv2.QRCodeDetectorAruco(), cv2.QRCodeDetector(), cv2.barcode.BarcodeDetector()):
            try:
                any_found, corners = finder.detectMulti(view)
            except cv2.error:  # OpenCV (5.0) raises for some outlines that are no convex figures
                continue
            if any_found and corners is not None:
                quadrangles += list(np.asarray(corners, np.float32).reshape(-1, 4, 2))
    return [corners for corners in quadrangles if _has_two_levels(picture, corners)]


def _has_two_levels(picture: Array, corners: Array) -> bool:
    left, top = np.floor(corners.min(axis=0)).astype(int).clip(0)
    right, bottom = np.ceil(corners.max(axis=0)).astype(int)
    crop = picture[top:bottom, left:right].astype(np.float32)
    if min(crop.shape, default=0) < LEAST_SIDE:
        return False
    low, high = np.percentile(crop, (5, 95))
    if high - low < 20:
        return False
    distance = np.abs(crop.clip(low, high) - (low + high) / 2) / ((high - low) / 2)
    return float(distance.mean()) >= TWO_LEVELS
