"""What can go wrong, as typed exceptions whose text is one sentence for a person.

Every message names the value, the reason and the way out; the command line and the pages show it as it is.
"""


class EmbcompareError(Exception):
    """Base of everything embcompare raises on purpose; ``str(error)`` is fit to be shown."""


class SettingsError(EmbcompareError):
    """A setting is unknown, of the wrong kind or out of its range."""


class ModelNotFound(EmbcompareError):
    """No model of that name can be reached: misspelt, absent, or the hub does not answer."""


class ModelRefused(EmbcompareError):
    """The model exists but policy refuses it: pickled weights, own code, too large, not on the hosted list."""


class ModelDamaged(EmbcompareError):
    """The model's files are incomplete or unreadable, or its weights hold NaN or infinite values."""


class UnsupportedFamily(EmbcompareError):
    """The architecture is not one whose anatomy is known; the message lists its modules."""


class Incomparable(EmbcompareError):
    """Two models cannot be compared in this way: widths, vocabularies or parts do not fit."""


class InputError(EmbcompareError):
    """Text or vectors that a user gave cannot be used; the message says where, why and what would do."""


class StoreError(EmbcompareError):
    """Results cannot be kept: folder not writable, disk full."""


class Busy(EmbcompareError):
    """The queue is full; the message says how long it is."""


class Cancelled(EmbcompareError):
    """Somebody asked the running computation to stop."""


class EmbcompareWarning(UserWarning):
    """Something a user should know that does not make the result wrong."""
