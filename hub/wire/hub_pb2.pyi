from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Messages")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("NextOffset",)
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NextOffset: int
    def __init__(self, NextOffset: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Offset", "MaxMessages", "MaxBytes", "Unverified")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXMESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Offset: int
    MaxMessages: int
    MaxBytes: int
    Unverified: bool
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Offset: _Optional[int] = ..., MaxMessages: _Optional[int] = ..., MaxBytes: _Optional[int] = ..., Unverified: _Optional[bool] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("Messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    Messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, Messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("Offset", "Timestamp", "Type", "Key", "Value")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    Offset: int
    Timestamp: int
    Type: int
    Key: bytes
    Value: bytes
    def __init__(self, Offset: _Optional[int] = ..., Timestamp: _Optional[int] = ..., Type: _Optional[int] = ..., Key: _Optional[bytes] = ..., Value: _Optional[bytes] = ...) -> None: ...

class WhereRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Timestamp", "First", "End")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Timestamp: int
    First: int
    End: int
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Timestamp: _Optional[int] = ..., First: _Optional[int] = ..., End: _Optional[int] = ...) -> None: ...

class WhereResponse(_message.Message):
    __slots__ = ("Known", "FirstOffset", "NextOffset", "TimeOffset", "ID")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMEOFFSET_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    Known: bool
    FirstOffset: int
    NextOffset: int
    TimeOffset: int
    ID: bytes
    def __init__(self, Known: _Optional[bool] = ..., FirstOffset: _Optional[int] = ..., NextOffset: _Optional[int] = ..., TimeOffset: _Optional[int] = ..., ID: _Optional[bytes] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("ClientID",)
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    def __init__(self, ClientID: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("Journals",)
    JOURNALS_FIELD_NUMBER: _ClassVar[int]
    Journals: _containers.RepeatedCompositeFieldContainer[Listed]
    def __init__(self, Journals: _Optional[_Iterable[_Union[Listed, _Mapping]]] = ...) -> None: ...

class Listed(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "FirstOffset", "NextOffset", "Size", "ID", "Messages")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    FirstOffset: int
    NextOffset: int
    Size: int
    ID: bytes
    Messages: int
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., FirstOffset: _Optional[int] = ..., NextOffset: _Optional[int] = ..., Size: _Optional[int] = ..., ID: _Optional[bytes] = ..., Messages: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Offset", "StopOffset", "Skip", "Verify", "Columns", "Since", "Until")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOPOFFSET_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Offset: int
    StopOffset: int
    Skip: bool
    Verify: bool
    Columns: int
    Since: int
    Until: int
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Offset: _Optional[int] = ..., StopOffset: _Optional[int] = ..., Skip: _Optional[bool] = ..., Verify: _Optional[bool] = ..., Columns: _Optional[int] = ..., Since: _Optional[int] = ..., Until: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("Encoded", "Rows")
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    Encoded: bytes
    Rows: Rows
    def __init__(self, Encoded: _Optional[bytes] = ..., Rows: _Optional[_Union[Rows, _Mapping]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("Begin", "Stop", "First", "Count", "Timestamps", "Types", "KeyEnds", "Keys", "ValueEnds", "Values")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    KEYENDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUEENDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    Begin: int
    Stop: int
    First: int
    Count: int
    Timestamps: bytes
    Types: bytes
    KeyEnds: bytes
    Keys: bytes
    ValueEnds: bytes
    Values: bytes
    def __init__(self, Begin: _Optional[int] = ..., Stop: _Optional[int] = ..., First: _Optional[int] = ..., Count: _Optional[int] = ..., Timestamps: _Optional[bytes] = ..., Types: _Optional[bytes] = ..., KeyEnds: _Optional[bytes] = ..., Keys: _Optional[bytes] = ..., ValueEnds: _Optional[bytes] = ..., Values: _Optional[bytes] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("Reader", "Holder", "LeaseMs", "Take", "Places")
    READER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASEMS_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    Reader: str
    Holder: str
    LeaseMs: int
    Take: bool
    Places: _containers.RepeatedCompositeFieldContainer[Place]
    def __init__(self, Reader: _Optional[str] = ..., Holder: _Optional[str] = ..., LeaseMs: _Optional[int] = ..., Take: _Optional[bool] = ..., Places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Offset", "Reset")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Offset: int
    Reset: bool
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Offset: _Optional[int] = ..., Reset: _Optional[bool] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("Places",)
    PLACES_FIELD_NUMBER: _ClassVar[int]
    Places: _containers.RepeatedCompositeFieldContainer[KeptPlace]
    def __init__(self, Places: _Optional[_Iterable[_Union[KeptPlace, _Mapping]]] = ...) -> None: ...

class KeptPlace(_message.Message):
    __slots__ = ("Offset", "Kept")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    Offset: int
    Kept: bool
    def __init__(self, Offset: _Optional[int] = ..., Kept: _Optional[bool] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Encoded", "Create", "Checksum", "LostFrom")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LOSTFROM_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Encoded: bytes
    Create: bool
    Checksum: int
    LostFrom: int
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Encoded: _Optional[bytes] = ..., Create: _Optional[bool] = ..., Checksum: _Optional[int] = ..., LostFrom: _Optional[int] = ...) -> None: ...

class CopyResponse(_message.Message):
    __slots__ = ("NextOffset",)
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NextOffset: int
    def __init__(self, NextOffset: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("ClientID", "Job", "Task", "Shard", "Position", "Encoded")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    Job: str
    Task: str
    Shard: int
    Position: int
    Encoded: bytes
    def __init__(self, ClientID: _Optional[str] = ..., Job: _Optional[str] = ..., Task: _Optional[str] = ..., Shard: _Optional[int] = ..., Position: _Optional[int] = ..., Encoded: _Optional[bytes] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("Size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    Size: int
    def __init__(self, Size: _Optional[int] = ...) -> None: ...

class StagedFile(_message.Message):
    __slots__ = ("Task", "Shard", "Messages", "Size", "Checksum")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    Task: str
    Shard: int
    Messages: int
    Size: int
    Checksum: int
    def __init__(self, Task: _Optional[str] = ..., Shard: _Optional[int] = ..., Messages: _Optional[int] = ..., Size: _Optional[int] = ..., Checksum: _Optional[int] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("ClientID", "Job", "Files")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    Job: str
    Files: _containers.RepeatedCompositeFieldContainer[StagedFile]
    def __init__(self, ClientID: _Optional[str] = ..., Job: _Optional[str] = ..., Files: _Optional[_Iterable[_Union[StagedFile, _Mapping]]] = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("ClientID", "Job", "Prefix", "Bits", "Name", "Number", "Files")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    Job: str
    Prefix: str
    Bits: int
    Name: str
    Number: int
    Files: _containers.RepeatedCompositeFieldContainer[StagedFile]
    def __init__(self, ClientID: _Optional[str] = ..., Job: _Optional[str] = ..., Prefix: _Optional[str] = ..., Bits: _Optional[int] = ..., Name: _Optional[str] = ..., Number: _Optional[int] = ..., Files: _Optional[_Iterable[_Union[StagedFile, _Mapping]]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("Written",)
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    Written: bool
    def __init__(self, Written: _Optional[bool] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("ClientID", "Job")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    Job: str
    def __init__(self, ClientID: _Optional[str] = ..., Job: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
