"""A file without a subject."""

from tests.unearned_greens.common import Copying  # noqa: F401
