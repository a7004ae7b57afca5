"""A browser for the tests of pages, and what they measure in it."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]

browsed = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
"""Marks of tests that need it."""

CONTRASTS = """() => {
    const parts = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = node => {
        for (let at = node; at; at = at.parentElement) {
            const colour = parts(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('body *')]
        .filter(node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()))
        .map(node => {
            const [a, b] = [light(parts(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        });
}"""
UNNAMED = """() => [...document.querySelectorAll('a, button, select, input, summary, [role=img], nav, form, table')]
    .filter(node => !(node.textContent.trim() && node.matches('a, button, summary')))
    .filter(node => !node.ariaLabel && !node.labels?.length && !node.caption?.textContent.trim())
    .filter(node => !document.getElementById(node.getAttribute('aria-labelledby'))?.textContent.trim())
    .map(node => node.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def opened(browser: Browser, **chosen: Any) -> Page:
    """A page of a browser that remembers nothing."""
    page = browser.new_context(**chosen).new_page()
    page.set_default_timeout(240_000)  # of a machine that does much else
    return page
