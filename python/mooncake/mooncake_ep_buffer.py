"""Not in this package; importing it says why."""
import mooncake._absent

mooncake._absent.refuse(__spec__.name)
