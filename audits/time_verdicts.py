"""Verdicts on the times in a log. Only text that is not a time is reported as broken.

A wrong clock, the site's own or another party's, looks like an entry that was dated anew.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from audits.cosigned_times import TOLERANCE, CosignedTimes
from audits.expiry import Basis
from audits.judgement import BROKEN, NOT_SHOWN, SHOWN, VerdictPart
from audits.time_order import LEAP, TRAVEL, Times
from audits.verifier import Walk


def times_part(times: Times) -> VerdictPart:
    """Whether the dates of the entries can be right by themselves."""
    if times.malformed is not None:
        return VerdictPart("times", BROKEN, "the entry's time is not one that this format has", times.malformed)
    if times.earlier is not None:
        by = str(times.back).split(".")[0]
        text = f"the entry is dated {by} before what comes before it: the clock was set back, or it was dated anew"
        return VerdictPart("times", NOT_SHOWN, text, times.earlier)
    if (leap := times.leap()) is not None:
        text = f"more than {LEAP.days} days lie before the entry, and no signed time of others reaches its date"
        return VerdictPart("times", NOT_SHOWN, text, leap)
    if (future := times.future(datetime.now(UTC))) is not None:
        text = "the entry is dated in the future: its clock or this machine's is wrong, or it was dated anew"
        return VerdictPart("times", NOT_SHOWN, text, future)
    return VerdictPart("times", SHOWN, f"times are in order to {TOLERANCE.seconds // 60} minutes, none in the future")


def cosigned_times_parts(times: Times) -> Iterator[VerdictPart]:
    """Whether the dates of the entries fit the times that other parties signed; nothing if none is known."""
    name = "cosigned times"
    if not times.cosigned.sizes:
        return
    if times.cosigned.backwards is not None:
        text = "a party cosigned the log up to this entry before it cosigned less of it: its clock was set back"
        yield VerdictPart(name, NOT_SHOWN, text, times.cosigned.backwards)
    elif times.cosigned_earlier is not None:
        text = "others cosigned the entry before its date: the site's clock was ahead, or theirs is behind"
        yield VerdictPart(name, NOT_SHOWN, text, times.cosigned_earlier)
    elif times.cosigned_later is not None:
        text = f"the entry is dated more than {TRAVEL.days} days before others cosigned what precedes it"
        yield VerdictPart(name, NOT_SHOWN, text, times.cosigned_later)
    else:
        yield VerdictPart(name, SHOWN, "the dates of the entries fit the times at which others cosigned them")


def retention_parts(walk: Walk, cosigned: CosignedTimes) -> Iterator[VerdictPart]:
    """Whether others' times show that the expired first entries of a log were old enough."""
    if not walk.first or walk.expiry is None:
        return
    days, existed_since = walk.expiry.days, cosigned.existed(walk.first - 1)
    text = f"entries 0 to {walk.first - 1} have expired"
    if existed_since and cosigned.newest and cosigned.newest - existed_since >= timedelta(days=days):
        yield VerdictPart("retention", SHOWN, f"{text}, and others' signed times show that {days} days have passed")
    elif walk.expiry.basis is Basis.DATE:
        yield VerdictPart("retention", NOT_SHOWN, f"{text} by a date that a person gave, not by others' signed times")
    else:
        yield VerdictPart(
            "retention", NOT_SHOWN, f"{text}, and no signed times of others show that they were old enough"
        )
