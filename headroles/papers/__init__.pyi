from .preparation import prepare as prepare
from .preparation import prepared as prepared
from .replication import replicate as replicate
from .reproduction import reproduce as reproduce
