"""Values that are computed at first use, without a lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  # in its place
        """functools' decorator as in Python 3.12.

        In 3.11 it holds a lock of the class while it computes. So while one constraint loads its model, or asks it, all
        other constraints of its kind would wait. Here two threads may compute a value at once, and the first one stays.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            values = vars(instance)
            if self.attrname not in values:
                values.setdefault(self.attrname, self.func(instance))
            return values[self.attrname]
