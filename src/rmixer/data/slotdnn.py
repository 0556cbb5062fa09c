"""Slots as PaddleRec's slot_dnn reads them: words ``feasign:slot``, feasigns of 64 bits.

    0:1 4351255118977467729:3 16543128959394097760:29 1507935251765915611:29 ..

Slot 1 is the label, slots 2 to 301 are lists of ids (models/rank/slot_dnn, ``slot_num`` 300). Fewer
slots, or others, by ``schema`` as in `rmixer.data.slots`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rmixer.data.slots import PaddleRecSlots

if TYPE_CHECKING:
    from rmixer.data.detect import Sample


_NUMBERS = re.compile(r"\d+:\d+")


class SlotDNN(PaddleRecSlots):
    """The format ``paddlerec_slotdnn``."""

    VALUE_FIRST: ClassVar[bool] = True
    DEFAULT: ClassVar[Mapping[str, Any]] = {
        "label": "1",
        "sequence": {str(slot): {} for slot in range(2, 302)},
    }

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        words = [word for line in sample.lines for word in line.split(" ") if word]
        numbers = all(_NUMBERS.fullmatch(word) for word in words)
        labels = all(line.startswith(("0:1 ", "1:1 ")) for line in sample.lines)
        return {} if words and numbers and labels else None
