"""What a hostile server's processes load in tests only: every message to a site tells it where else to connect."""

from itertools import cycle

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from taps import HostileServer

SCHEMES = ("tcp", "http", "grpc")


class SteeringServer(HostileServer):
    """Writes the address of a listener into all that the server sends, or passes on, to sites."""

    def __init__(self, address: str, sites: list[str]) -> None:
        super().__init__()
        urls = cycle([f"{scheme}://{address}" for scheme in SCHEMES])
        send = CoreCell._send_to_endpoint

        def send_to_endpoint(cell: CoreCell, to_endpoint: Endpoint, message: Message) -> str:
            if to_endpoint.name in sites:
                message.set_header(MessageHeaderKey.CONN_URL, next(urls))
                if message.get_header(MessageHeaderKey.ORIGIN) == cell.get_fqcn():
                    # FLARE looks at the address in messages only that seem to have come by another cell.
                    message.set_header(MessageHeaderKey.FROM_CELL, "elsewhere")
            return str(send(cell, to_endpoint, message))

        CoreCell._send_to_endpoint = send_to_endpoint
