"""The type checker behind the shape checks of the tests."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

from beartype import beartype

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """beartype, but for functions that speak of `Self`: jaxtyping shows it functions alone, without their class."""
    return function if Self in getattr(function, "__annotations__", {}).values() else beartype(function)
