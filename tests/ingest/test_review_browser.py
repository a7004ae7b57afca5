"""The sheet of a review in a browser: every picture is drawn, and nothing is loaded."""

from collections.abc import Callable

import cv2
import numpy as np
from browsers import browsed, browser, opened
from playwright.sync_api import Browser
from pydicom.dataset import Dataset

from medfedvqa.ingest.review import write_sheet

__all__ = ["browser"]
pytestmark = browsed


def test_a_browser_draws_every_picture_and_asks_for_nothing(
    place, make_dicom: Callable[..., Dataset], make_picture: Callable[..., np.ndarray], browser: Browser
) -> None:
    """Before, as it is stored, and the crop of each find, under a policy that forbids all but inline pictures."""
    pixels = make_picture(1, 256)
    letters = cv2.putText(np.zeros((256, 256), np.uint8), "SECRET ANNA", (20, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 1, 2)
    pixels[letters > 0] = 4000
    place.add("1.dcm", make_dicom(pixels))
    place.ask("1.dcm")
    place.ingest(side=256)
    address = write_sheet(place.out)[0].as_uri()
    page, schemes, messages = opened(browser, viewport={"width": 1100, "height": 1000}), list[str](), list[str]()
    page.on("request", lambda request: schemes.append(request.url.split(":")[0]))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(address)
    widths = page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
    page.context.close()
    assert len(widths) >= 3 and all(widths) and widths[:2] == [256, 256]
    assert set(schemes) <= {"file", "data"} and messages == []
