"""Client quotas (KIP-546)."""

from ..schema import Float64, Int8, Int16, Int32, message, struct, wire


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """Request for the client quotas that match a filter (KIP-546)."""

    @struct
    class Component:
        """Match type 0: this name, 1: the default (null name), 2: any name."""

        entity_type: str = ""
        match_type: Int8 = 0
        match: str | None = None

    components: list[Component] = wire()
    strict: bool = False


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """Quotas by entity."""

    @struct
    class Entity:
        """One part of an entity: a user, a client ID or an address; a null name is the default."""

        entity_type: str = ""
        entity_name: str | None = None

    @struct
    class Value:
        key: str = ""
        value: Float64 = 0.0

    @struct
    class Entry:
        """An entity, of one or more parts."""

        entity: list["DescribeClientQuotasResponse.Entity"] = wire()
        values: list["DescribeClientQuotasResponse.Value"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    entries: list[Entry] | None = None


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Request to set or remove client quotas (KIP-546)."""

    @struct
    class Entity:
        """One part of an entity: a user, a client ID or an address; a null name is the default."""

        entity_type: str = ""
        entity_name: str | None = None

    @struct
    class Op:
        key: str = ""
        value: Float64 = 0.0
        remove: bool = False

    @struct
    class Entry:
        """An entity, of one or more parts."""

        entity: list["AlterClientQuotasRequest.Entity"] = wire()
        ops: list["AlterClientQuotasRequest.Op"] = wire()

    entries: list[Entry] = wire()
    validate_only: bool = False


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """Outcome per entity."""

    @struct
    class Entity:
        """One part of an entity: a user, a client ID or an address; a null name is the default."""

        entity_type: str = ""
        entity_name: str | None = None

    @struct
    class Entry:
        """An entity, of one or more parts."""

        error_code: Int16 = 0
        error_message: str | None = None
        entity: list["AlterClientQuotasResponse.Entity"] = wire()

    throttle_time_ms: Int32 = 0
    entries: list[Entry] = wire()
