"""How long it takes: candidates are built, checked and timed in isolated workers, or replayed."""

from tilewright.measure.ceilings import Ceilings as Ceilings
from tilewright.measure.ceilings import measure_ceilings as measure_ceilings
from tilewright.measure.lock import device_lock as device_lock
from tilewright.measure.memory import bytes_text as bytes_text
from tilewright.measure.memory import memory_text as memory_text
from tilewright.measure.memory import shortage as shortage
from tilewright.measure.outcome import STATUSES as STATUSES
from tilewright.measure.outcome import Outcome as Outcome
from tilewright.measure.policy import Policy as Policy
from tilewright.measure.replay import ReplayError as ReplayError
from tilewright.measure.replay import ReplayRunner as ReplayRunner
from tilewright.measure.request import DeviceError as DeviceError
from tilewright.measure.request import Request as Request
from tilewright.measure.request import Runner as Runner
from tilewright.measure.runner import LocalRunner as LocalRunner
from tilewright.measure.timing import Pair as Pair
from tilewright.measure.timing import paired as paired
