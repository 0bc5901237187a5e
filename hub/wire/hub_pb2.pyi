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
    __slots__ = ("ClientID", "JournalDir", "Offset", "MaxMessages", "MaxBytes")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXMESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Offset: int
    MaxMessages: int
    MaxBytes: int
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Offset: _Optional[int] = ..., MaxMessages: _Optional[int] = ..., MaxBytes: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("ClientID", "JournalDir", "Timestamp")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Timestamp: int
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Timestamp: _Optional[int] = ...) -> None: ...

class WhereResponse(_message.Message):
    __slots__ = ("Known", "FirstOffset", "NextOffset", "TimeOffset")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMEOFFSET_FIELD_NUMBER: _ClassVar[int]
    Known: bool
    FirstOffset: int
    NextOffset: int
    TimeOffset: int
    def __init__(self, Known: _Optional[bool] = ..., FirstOffset: _Optional[int] = ..., NextOffset: _Optional[int] = ..., TimeOffset: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("ClientID", "JournalDir", "FirstOffset", "NextOffset", "Size", "ID")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    FirstOffset: int
    NextOffset: int
    Size: int
    ID: bytes
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., FirstOffset: _Optional[int] = ..., NextOffset: _Optional[int] = ..., Size: _Optional[int] = ..., ID: _Optional[bytes] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Offset", "StopOffset", "Skip", "Verify")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOPOFFSET_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Offset: int
    StopOffset: int
    Skip: bool
    Verify: bool
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Offset: _Optional[int] = ..., StopOffset: _Optional[int] = ..., Skip: _Optional[bool] = ..., Verify: _Optional[bool] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("Encoded",)
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    Encoded: bytes
    def __init__(self, Encoded: _Optional[bytes] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("ClientID", "JournalDir", "Encoded", "Create")
    CLIENTID_FIELD_NUMBER: _ClassVar[int]
    JOURNALDIR_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    ClientID: str
    JournalDir: str
    Encoded: bytes
    Create: bool
    def __init__(self, ClientID: _Optional[str] = ..., JournalDir: _Optional[str] = ..., Encoded: _Optional[bytes] = ..., Create: _Optional[bool] = ...) -> None: ...

class CopyResponse(_message.Message):
    __slots__ = ("NextOffset",)
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NextOffset: int
    def __init__(self, NextOffset: _Optional[int] = ...) -> None: ...
