"""Heaps of keys, as LLVM IR: what a selection keeps of a row.

A key is one integer: a value mapped to an integer of the same order, and below it the complement of its position, so that of equal
values the first is the larger key, and no two keys are equal. The smallest key is at the root, which is what a new one has to beat
(J. W. J. Williams, "Heapsort", CACM 7, 1964).
"""

from __future__ import annotations

FUNCTIONS = frozenset({"heap_make", "heap_replace", "heap_sort"})
"""Put the keys of an array in the order of a heap; put another key in place of the smallest; sort a heap, the largest first."""


def symbol(name: str, lanes: int, dtype: str) -> str:
    """The function's name in IR, without the ``@``. ``dtype`` names the type of the keys: ``i64`` or ``i128``."""
    assert name in FUNCTIONS | {"heap_down"}
    assert lanes == 1
    return f"tw_{name}_{dtype}"


def define(name: str, lanes: int, dtype: str) -> tuple[str, frozenset[str]]:
    """The text of a function, and the declare lines that its module needs. All need ``heap_make``, which comes with the one that
    moves a key down."""
    texts = {"heap_make": _DOWN + _MAKE, "heap_replace": _REPLACE, "heap_sort": _SORT}
    label = symbol(name, lanes, dtype)
    text = texts[name].replace("@self", f"@{label}").replace("@down", f"@{symbol('heap_down', 1, dtype)}")
    return text.replace("KEY", dtype), frozenset()


_DOWN = """define internal void @down(ptr %h, i64 %n, i64 %from, KEY %key) nounwind {
entry:
  br label %next
next:
  %at = phi i64 [ %from, %entry ], [ %child, %up ]
  %twice = shl i64 %at, 1
  %left = add i64 %twice, 1
  %has = icmp slt i64 %left, %n
  br i1 %has, label %look, label %put
look:
  %right = add i64 %twice, 2
  %two = icmp slt i64 %right, %n
  %other = select i1 %two, i64 %right, i64 %left
  %pl = getelementptr KEY, ptr %h, i64 %left
  %pr = getelementptr KEY, ptr %h, i64 %other
  %kl = load KEY, ptr %pl, align 8
  %kr = load KEY, ptr %pr, align 8
  %less = icmp slt KEY %kr, %kl
  %child = select i1 %less, i64 %other, i64 %left
  %kc = select i1 %less, KEY %kr, KEY %kl
  %settled = icmp sle KEY %key, %kc
  br i1 %settled, label %put, label %up
up:
  %pa = getelementptr KEY, ptr %h, i64 %at
  store KEY %kc, ptr %pa, align 8
  br label %next
put:
  %p = getelementptr KEY, ptr %h, i64 %at
  store KEY %key, ptr %p, align 8
  ret void
}
"""
_MAKE = """define internal void @self(ptr %h, i64 %n) nounwind {
entry:
  %half = lshr i64 %n, 1
  br label %next
next:
  %k = phi i64 [ %half, %entry ], [ %at, %more ]
  %any = icmp sgt i64 %k, 0
  br i1 %any, label %more, label %done
more:
  %at = sub i64 %k, 1
  %p = getelementptr KEY, ptr %h, i64 %at
  %key = load KEY, ptr %p, align 8
  call void @down(ptr %h, i64 %n, i64 %at, KEY %key)
  br label %next
done:
  ret void
}
"""
_REPLACE = """define internal void @self(ptr %h, i64 %n, KEY %key) nounwind {
entry:
  call void @down(ptr %h, i64 %n, i64 0, KEY %key)
  ret void
}
"""
_SORT = """define internal void @self(ptr %h, i64 %n) nounwind {
entry:
  br label %next
next:
  %k = phi i64 [ %n, %entry ], [ %at, %more ]
  %any = icmp sgt i64 %k, 1
  br i1 %any, label %more, label %done
more:
  %at = sub i64 %k, 1
  %p = getelementptr KEY, ptr %h, i64 %at
  %key = load KEY, ptr %p, align 8
  %least = load KEY, ptr %h, align 8
  store KEY %least, ptr %p, align 8
  call void @down(ptr %h, i64 %at, i64 0, KEY %key)
  br label %next
done:
  ret void
}
"""
