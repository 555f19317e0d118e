"""Of a name server, where the node is its own: 100 to 102, 205, 219, 224, 304, 311 to 313, 327.

Values of names are kept in `config/kvConfig.json`, the file of a name server (KVConfigManager). As
there, unless `orderMessageEnable` is set, nothing heeds the order of topics in them.
"""

from pathlib import Path

from keelog.gateway.admin.topics import SYSTEM_TOPICS, is_system_topic
from keelog.gateway.connection import Reply, Request, json_reply
from keelog.gateway.topics import Topics
from node.runtime.process import now_ms
from node.store.config.config_table import ConfigTable
from protocol.errors import NotAllowed, NotFound
from protocol.names import KV_CONFIG_FILE
from protocol.remoting.bodies import KVTable, TopicList
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import KvHeader, request_fields
from protocol.remoting.java_json import write_body

KEYS_KEPT_MAX = 10_000
"""Of all namespaces together."""
VALUE_CHARS_MAX = 4_096


class NameServerHandlers:
    """One for each gateway, which owns the file, in the thread of its loop."""

    def __init__(self, root: Path, topics: Topics) -> None:
        self._topics = topics
        self.file = ConfigTable(root / KV_CONFIG_FILE, "configTable", now_ms)

    def put(self, request: Request) -> Reply:
        """100: gives a name a value. Raises NotAllowed."""
        wanted: KvHeader = request_fields(request.header)
        self.file.check_readable()
        known = self.file.entries.get(wanted.namespace, {})
        count = sum(map(len, self.file.entries.values()))
        if count >= KEYS_KEPT_MAX and wanted.key not in known:
            raise NotAllowed(f"{KEYS_KEPT_MAX} names have values already")
        if max(map(len, wanted)) > VALUE_CHARS_MAX:
            raise NotAllowed(f"more than {VALUE_CHARS_MAX} characters")
        self.file.entries[wanted.namespace] = {**known, wanted.key: wanted.value}
        self.file.touch()
        return Reply()

    def get(self, request: Request) -> Reply:
        """101: the value of a name."""
        wanted: KvHeader = request_fields(request.header)
        found = self.file.entries.get(wanted.namespace, {}).get(wanted.key)
        if found is None:
            text = f"No config item, Namespace: {wanted.namespace} Key: {wanted.key}"
            raise NotFound(text)
        return Reply(ext={"value": str(found)})

    def delete(self, request: Request) -> Reply:
        """102: takes a name's value away."""
        wanted: KvHeader = request_fields(request.header)
        self.file.check_readable()
        known = dict(self.file.entries.get(wanted.namespace, {}))
        if known.pop(wanted.key, None) is not None:
            self.file.entries[wanted.namespace] = known
            self.file.touch()
        return Reply()

    def values(self, request: Request) -> Reply:
        """219: all names of a namespace."""
        namespace = request_fields(request.header).namespace
        found = self.file.entries.get(namespace)
        if found is None:
            raise NotFound(f"No config item, Namespace: {namespace}")
        table = {name: str(value) for name, value in found.items()}
        return json_reply(KVTable(table))

    def set_wiped(self, is_wiped: bool, request: Request) -> Reply:
        """205: routes say that nothing can be sent, until 327 or a restart of the gateway. Returns
        how many topics that concerns: none of another broker."""
        count = 0
        if request_fields(request.header).broker_name == self._topics.name.broker:
            self._topics.is_wiped = is_wiped
            count = len(self._topics.announced().topic_config_table)
        return Reply(ext={"wipeTopicCount" if is_wiped else "addTopicCount": str(count)})

    def topics_of_cluster(self, request: Request) -> Reply:
        """224: the topics of a cluster, which is this node."""
        is_ours = request_fields(request.header).cluster == self._topics.name.cluster
        names = tuple(self._topics.announced().topic_config_table) if is_ours else ()
        return json_reply(TopicList(names))

    def system_topics(self, request: Request) -> Reply:
        """304: the cluster and the broker, which have topics of their names."""
        address = self._topics.name.address or request.connection.address
        names = (self._topics.name.cluster, self._topics.name.broker)
        return json_reply(TopicList(names, address))

    def flagged(self, has: int, lacks: int, _: Request) -> Reply:
        """311 to 313: the topics of which the flags have a bit, and lack another."""
        flags = {
            n: t.topic_sys_flag for n, t in self._topics.announced().topic_config_table.items()
        }
        names = (name for name, flag in flags.items() if flag & has and not flag & lacks)
        return json_reply(TopicList(tuple(names)))

    def own_system_topics(self, _: Request) -> Reply:
        """305: of a broker: the topics that clients may not make, also those that nobody has made:
        tools show what is not among them as a topic of users."""
        known = self._topics.announced().topic_config_table
        names = SYSTEM_TOPICS.union(name for name in known if is_system_topic(name, self._topics))
        body = write_body(TopicList(tuple(sorted(names))), standard=True)
        return Reply(ResponseCode.SUCCESS, body=body)
