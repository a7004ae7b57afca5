"""Draws a picture on a PDF's page."""

from fpdf import FPDF

from medfedvqa.report.blocks import shown
from medfedvqa.report.shapes import Box, Drawing, Line, Mark, Role, Words, corners

ROLES: dict[Role, tuple[int, int, int]] = {
    "ink": (26, 31, 36),
    "soft": (86, 94, 104),
    "line": (216, 218, 212),
    "limit": (161, 28, 22),
    "first": (10, 79, 125),
    "second": (217, 112, 26),
    "third": (143, 184, 212),
    "fourth": (180, 99, 154),
    "fifth": (201, 205, 198),
}
"""The page's colours by day."""
LETTERS = 11.0
"""Height of a picture's text, in its own units."""
POINTS = 72 / 25.4


def sketch(pdf: FPDF, drawing: Drawing, x: float, y: float, width: float) -> None:
    """Draw it `width` millimetres wide, with its upper left corner at x, y."""
    unit = width / drawing.width
    for shape in drawing.shapes:
        colour = ROLES[shape.role]
        pdf.set_draw_color(*colour)
        pdf.set_fill_color(*colour)
        match shape:
            case Line():
                dash = {"dash_pattern": {"dash": 1.0, "gap": 0.8}} if shape.dashed else {}
                with pdf.local_context(line_width=0.75 * shape.width * unit, **dash):
                    pdf.polyline([(x + unit * across, y + unit * down) for across, down in shape.points])
            case Box():
                pdf.rect(x + unit * shape.x, y + unit * shape.y, unit * shape.width, unit * shape.height, style="F")
            case Mark(shape="circle"):
                pdf.circle(x + unit * shape.x, y + unit * shape.y, 5 * unit, style="F")
            case Mark():
                pdf.polygon([(x + unit * across, y + unit * down) for across, down in corners(shape)], style="F")
            case Words():
                pdf.set_font("sans", "", LETTERS * unit * POINTS)
                pdf.set_text_color(*colour)
                said = shown(shape.text)
                back = {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * pdf.get_string_width(said)
                pdf.text(x + unit * shape.x - back, y + unit * shape.y, said)
