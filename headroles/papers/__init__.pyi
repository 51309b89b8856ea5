from .preparation import prepare as prepare
from .preparation import prepared as prepared
from .reproduction import reproduce as reproduce
