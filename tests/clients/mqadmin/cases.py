"""Every command of mqadmin 5.5.0 with arguments that suit both sides, in the order of their runs.

Names in braces are filled in for each side: see `AdminSide.names`. What changes something comes
last, and both sides change in the same order.
"""

from collections.abc import Sequence
from typing import NamedTuple

LIMIT_S = 20.0
"""A command that still runs is interrupted, and what it has printed counts."""


class AdminCase(NamedTuple):
    """One run of a command. `numbers`: its numbers are those of the process, so they are masked."""

    command: str
    arguments: str = ""
    numbers: bool = False
    limit_s: float = LIMIT_S
    asks_name_server: bool = True
    """Whether it takes -n."""
    after_s: float = 0.0
    """The pause before it: a Java consumer commits each 5 s."""

    @property
    def words(self) -> Sequence[str]:
        """The command line, unfilled."""
        name_server = ("-n", "{name_server}") if self.asks_name_server else ()
        return (self.command, *self.arguments.split(), *name_server)

    @property
    def subject(self) -> str:
        """What the table is about."""
        return self.command

    @property
    def label(self) -> str:
        """As an operator writes it, without addresses."""
        return f"{self.command} {self.arguments}".strip()


_READS = (
    AdminCase("clusterList", numbers=True),
    AdminCase("clusterList", "-m", numbers=True),
    AdminCase("brokerStatus", "-b {broker}"),
    AdminCase("topicList"),
    AdminCase("topicList", "-c"),
    AdminCase("topicRoute", "-t {topic}"),
    AdminCase("topicRoute", "-t {topic} -l"),
    AdminCase("topicRoute", "-t nosuchtopic"),
    AdminCase("topicStatus", "-t {topic}"),
    AdminCase("topicStatus", "-t nosuchtopic"),
    AdminCase("topicClusterList", "-t {topic}"),
    AdminCase("allocateMQ", "-t {topic} -i 10.0.0.1,10.0.0.2,10.0.0.3"),
    AdminCase("consumerProgress"),
    AdminCase("consumerProgress", "-g {group}"),
    AdminCase("consumerProgress", "-g {live}"),
    AdminCase("consumerProgress", "-g {live} -s true"),
    AdminCase("consumerConnection", "-g {live}"),
    AdminCase("consumerConnection", "-g {live} -b {broker}"),
    AdminCase("consumerConnection", "-g {group}"),
    AdminCase("producerConnection", "-g {producers} -t {side_topic}"),
    AdminCase("producerConnection", "-g nosuchgroup -t {topic}"),
    AdminCase("producer", "-b {broker}"),
    AdminCase("consumerStatus", "-g {live}"),
    AdminCase("consumerStatus", "-g {live} -i {client_id}"),
    AdminCase("getConsumerConfig", "-g {group}"),
    AdminCase("getConsumerConfig", "-g nosuchgroup"),
    AdminCase("brokerConsumeStats", "-b {broker}"),
    AdminCase("brokerConsumeStats", "-b {broker} -o true"),
    AdminCase("statsAll"),
    AdminCase("statsAll", "-t {topic}"),
    AdminCase("getBrokerConfig", "-b {broker}"),
    AdminCase("getBrokerConfig", "-c {cluster}"),
    AdminCase("queryMsgById", "-t {topic} -i {offset_id}"),
    AdminCase("queryMsgById", "-t {topic} -i {offset_id} -g {live} -d {client_id}"),
    AdminCase("queryMsgByKey", "-t {topic} -k key-7"),
    AdminCase("queryMsgByKey", "-t {topic} -k nosuchkey"),
    AdminCase("queryMsgByUniqueKey", "-t {topic} -i {unique_key}"),
    AdminCase("queryMsgByUniqueKey", "-t {topic} -i {unique_key} -a"),
    AdminCase("queryMsgByOffset", "-t {topic} -b {name} -i 1 -o 2"),
    AdminCase("queryMsgByOffset", "-t {topic} -b {name} -i 1 -o 2000"),
    AdminCase("queryMsgTraceById", "-i {unique_key}"),
    AdminCase("queryCq", "-t {topic} -q 1 -i 3 -c 4 -b {broker}"),
    AdminCase("queryCq", "-t {topic} -q 1 -i 3 -c 4 -b {broker} -g {live}"),
    AdminCase("queryCq", "-t {topic} -q 99 -i 0 -b {broker}"),
    AdminCase("printMsg", "-t {topic}"),
    AdminCase("printMsgByQueue", "-t {topic} -a {name} -i 2 -p true -f true"),
    AdminCase("consumeMessage", "-t {topic} -b {name} -i 1 -o 0 -c 5"),
    AdminCase("haStatus", "-b {broker}"),
    AdminCase("haStatus", "-c {cluster}"),
    AdminCase("exportConfigs", "-c {cluster} -f {folder}"),
    AdminCase("exportMetadata", "-c {cluster} -f {folder}"),
    AdminCase("exportMetrics", "-c {cluster} -f {folder}", numbers=True),
    AdminCase("exportMetadataInRocksDB", "-p {folder} -t topics", asks_name_server=False),
    AdminCase("exportPopRecord", "-b {broker}"),
    AdminCase("rocksDBConfigToJson", "-b {broker} -t topics"),
    AdminCase("checkRocksdbCqWriteProgress", "-c {cluster}"),
    AdminCase("dumpCompactionLog", "-f {folder}/none", asks_name_server=False),
    AdminCase("getNamesrvConfig"),
    AdminCase("startMonitoring", limit_s=4.0),
    AdminCase("getColdDataFlowCtrInfo", "-b {broker}"),
    AdminCase("getBrokerLiteInfo", "-b {broker}"),
    AdminCase("getParentTopicInfo", "-p {topic}"),
    AdminCase("getLiteTopicInfo", "-p {topic} -l one"),
    AdminCase("getLiteClientInfo", "-p {topic} -g {group} -c {client_id}"),
    AdminCase("getLiteGroupInfo", "-p {topic} -g {group}"),
)
_SENDS = (
    AdminCase("sendMessage", "-t {topic} -p hello -k k-new -c tagA -b {name} -i 1"),
    AdminCase("sendMessage", "-t nosuch%topic%%% -p hello"),
    AdminCase("checkMsgSendRT", "-t {topic} -a 3 -s 16", numbers=True),
    AdminCase("sendMsgStatus", "-b {name} -c 2", numbers=True),
    AdminCase("clusterRT", "-a 2 -s 16 -i 1", numbers=True, limit_s=3.0),
)
_CHANGES = (
    AdminCase("queryMsgByOffset", "-t {topic} -b {name} -i 1 -o 12", after_s=7.0),
    AdminCase("updateTopic", "-t Fresh -c {cluster} -r 3 -w 3"),
    AdminCase("topicRoute", "-t Fresh"),
    AdminCase("updateTopic", "-t Fresh2 -b {broker} -r 4 -w 2 -p 4"),
    AdminCase("topicStatus", "-t Fresh2"),
    AdminCase("updateTopic", "-t Fresh3 -c {cluster} -a +message.type=FIFO"),
    AdminCase("updateTopic", "-t Fresh4 -c {cluster} -a +cleanup.policy=COMPACTION"),
    AdminCase("deleteTopic", "-t Fresh4 -c {cluster}"),
    AdminCase("updateTopic", "-t Fresh5 -c {cluster} -a +nosuch=1"),
    AdminCase("updateTopic", "-t TBW102 -c {cluster}"),
    AdminCase("updateTopicPerm", "-t Fresh -b {broker} -p 4"),
    AdminCase("updateTopicPerm", "-t Fresh -c {cluster} -p 6"),
    AdminCase("updateTopicList", "-b {broker} -f {folder}/topics.json"),
    AdminCase("deleteTopic", "-t Fresh -c {cluster}"),
    AdminCase("topicRoute", "-t Fresh"),
    AdminCase("deleteTopic", "-t TBW102 -c {cluster}"),
    AdminCase("updateSubGroup", "-b {broker} -g fresh-group -r 5 -q 2"),
    AdminCase("getConsumerConfig", "-g fresh-group"),
    AdminCase("updateSubGroup", "-c {cluster} -g fresh-group2"),
    AdminCase("updateSubGroupList", "-b {broker} -f {folder}/groups.json"),
    AdminCase("deleteSubGroup", "-b {broker} -g fresh-group"),
    AdminCase("deleteSubGroup", "-c {cluster} -g fresh-group2 -r true"),
    AdminCase("getConsumerConfig", "-g fresh-group2"),
    AdminCase("setConsumeMode", "-b {broker} -t {topic} -g {group} -m POP -q 1"),
    AdminCase("setConsumeMode", "-b {broker} -t {topic} -g {group} -m PULL -q 0"),
    AdminCase("cloneGroupOffset", "-s {group} -d cloned -t {topic} -o true"),
    AdminCase("consumerProgress", "-g cloned"),
    AdminCase("resetOffsetByTime", "-g {group} -t {topic} -s -1"),
    AdminCase("consumerProgress", "-g {group}"),
    AdminCase("resetOffsetByTime", "-g {group} -t {topic} -s 0 -b {name} -q 1 -o 2"),
    AdminCase("consumerProgress", "-g {group}"),
    AdminCase("resetOffsetByTime", "-g nosuchgroup -t {topic} -s -1"),
    AdminCase("resetOffsetByTime", "-g {live} -t {topic} -s 0"),
    AdminCase("skipAccumulatedMessage", "-g {group} -t {topic}"),
    AdminCase("consumerProgress", "-g {group}"),
    AdminCase("updateBrokerConfig", "-b {broker} -k autoCreateTopicEnable -v false"),
    AdminCase("updateBrokerConfig", "-b {broker} -k autoCreateTopicEnable -v true"),
    AdminCase("updateBrokerConfig", "-b {broker} -k flushDiskType -v SYNC_FLUSH"),
    AdminCase("updateBrokerConfig", "-b {broker} -k brokerConfigPath -v /x"),
    AdminCase("updateKvConfig", "-s spaces -k a -v 1"),
    AdminCase("deleteKvConfig", "-s spaces -k a"),
    AdminCase("updateOrderConf", "-t {topic} -v {name}:4 -m put"),
    AdminCase("updateOrderConf", "-t {topic} -m get"),
    AdminCase("topicRoute", "-t {topic}"),
    AdminCase("updateOrderConf", "-t {topic} -m delete"),
    # Has the broker register its topics. `deleteTopic` changes them and registers nothing, so that
    # the registration of each 30 s could give the perm back before it is shown.
    AdminCase("updateTopic", "-t Fresh6 -c {cluster} -o true"),
    AdminCase("wipeWritePerm", "-b {name}", numbers=True),
    AdminCase("topicRoute", "-t {topic}"),
    AdminCase("addWritePerm", "-b {name}", numbers=True),
    AdminCase("topicRoute", "-t {topic}"),
    AdminCase("updateNamesrvConfig", "-k returnOrderTopicConfigToBroker -v true"),
    AdminCase("cleanExpiredCQ", "-b {broker}"),
    AdminCase("cleanExpiredCQ", "-c {cluster}"),
    AdminCase("cleanUnusedTopic", "-b {broker}"),
    AdminCase("deleteExpiredCommitLog", "-b {broker}"),
)
_REST = (
    AdminCase("addBroker", "-c {broker} -b {folder}/x.conf"),
    AdminCase("removeBroker", "-c {broker} -b {cluster}:{name}:0"),
    AdminCase("resetMasterFlushOffset", "-b {broker} -o 0"),
    AdminCase("getBrokerEpoch", "-b {name}"),
    AdminCase("getSyncStateSet", "-a {broker} -b {name}"),
    AdminCase("getControllerMetaData", "-a {broker}"),
    AdminCase("getControllerConfig", "-a {broker}"),
    AdminCase("updateControllerConfig", "-a {broker} -k a -v b"),
    AdminCase("electMaster", "-a {broker} -b 0 -n {name} -c {cluster}", asks_name_server=False),
    AdminCase("cleanBrokerMetadata", "-a {broker} -bn {name} -c {cluster}"),
    AdminCase("updateColdDataFlowCtrGroupConfig", "-b {broker} -g {group} -v 10"),
    AdminCase("removeColdDataFlowCtrGroupConfig", "-b {broker} -g {group}"),
    AdminCase("setCommitLogReadAheadMode", "-b {broker} -m 1"),
    AdminCase("triggerLiteDispatch", "-p {topic} -g {group}"),
    AdminCase("switchTimerEngine", "-b {broker} -e F"),
    AdminCase("updateStaticTopic", "-t Fixed -qn 2 -c {cluster}"),
    AdminCase("remappingStaticTopic", "-t Fixed -c {cluster}"),
)
CASES = (*_READS, *_SENDS, *_CHANGES, *_REST)
OF_USERS = (
    AdminCase("listUser", "-b {broker}"),
    AdminCase("getUser", "-b {broker} -u joe"),
    AdminCase("createUser", "-b {broker} -u joe -p secret12 -t Normal"),
    AdminCase("createUser", "-b {broker} -u joe -p secret12"),
    AdminCase("createUser", "-c {cluster} -u ann -p secret12 -t Super"),
    AdminCase("getUser", "-b {broker} -u joe"),
    AdminCase("getUser", "-c {cluster} -u ann"),
    AdminCase("listUser", "-b {broker}"),
    AdminCase("listUser", "-b {broker} -f jo"),
    AdminCase("listUser", "-c {cluster} -f nosuch"),
    AdminCase("updateUser", "-b {broker} -u joe -p secret13"),
    AdminCase("updateUser", "-b {broker} -u joe -t Super"),
    AdminCase("updateUser", "-c {cluster} -u joe -t Normal"),
    AdminCase("updateUser", "-b {broker} -u ann -s disable"),
    AdminCase("updateUser", "-b {broker} -u nosuch -s disable"),
    AdminCase("updateUser", "-b {broker} -u joe"),
    AdminCase("listUser", "-b {broker}"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Topic:{topic},Group:* -a Pub,Sub -d Allow"),
    AdminCase(
        "createAcl", "-c {cluster} -s User:joe -r Topic:stock* -a All -i 10.0.0.0/8,::1 -d Deny"
    ),
    AdminCase("createAcl", "-b {broker} -s User:nosuch -r Topic:a -a Pub -d Allow"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Nothing:a -a Pub -d Allow"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Topic:a -a Any -d Allow"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Topic:a -a Pub -i nowhere -d Allow"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Topic:a -a Pub -d Perhaps"),
    AdminCase("getAcl", "-b {broker} -s User:joe"),
    AdminCase("getAcl", "-c {cluster} -s User:joe"),
    AdminCase("getAcl", "-b {broker} -s User:ann"),
    AdminCase("getAcl", "-b {broker} -s User:nosuch"),
    AdminCase("listAcl", "-b {broker}"),
    AdminCase("listAcl", "-b {broker} -s joe -r Topic"),
    AdminCase("listAcl", "-c {cluster} -s nosuch"),
    AdminCase("updateAcl", "-b {broker} -s User:joe -r Topic:{topic} -a Sub -d Allow"),
    AdminCase("updateAcl", "-c {cluster} -s User:joe -r Group:billing -a Sub,Get -d Allow"),
    AdminCase("getAcl", "-b {broker} -s User:joe"),
    AdminCase("copyUser", "-f {broker} -t {broker} -u joe,ann"),
    AdminCase("copyUser", "-f {broker} -t {broker}"),
    AdminCase("copyAcl", "-f {broker} -t {broker} -s User:joe"),
    AdminCase("copyAcl", "-f {broker} -t {broker}"),
    # A node is stricter, so from here on the sides have other users and lists.
    AdminCase("createUser", "-b {broker} -u short -p 1234567"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Topic -a Pub -d Allow"),
    AdminCase("createAcl", "-b {broker} -s User:joe -r Topic:a -a Pub,Fly -d Allow"),
    AdminCase("deleteUser", "-b {broker} -u short"),
    AdminCase("deleteAcl", "-b {broker} -s User:joe -r Group:billing"),
    AdminCase("deleteAcl", "-c {cluster} -s User:joe"),
    AdminCase("deleteAcl", "-b {broker} -s User:joe"),
    AdminCase("deleteAcl", "-b {broker} -s User:nosuch"),
    AdminCase("deleteUser", "-b {broker} -u joe"),
    AdminCase("deleteUser", "-c {cluster} -u ann"),
    AdminCase("deleteUser", "-b {broker} -u nosuch"),
    AdminCase("listUser", "-b {broker}"),
)
"""They need a side with users, and the tools to log in there."""
MOST_USED = frozenset((
    "clusterList", "topicList", "topicStatus", "topicRoute", "topicClusterList", "updateTopic",
    "deleteTopic", "updateSubGroup", "deleteSubGroup", "consumerProgress", "consumerConnection",
    "producerConnection", "consumerStatus", "resetOffsetByTime", "skipAccumulatedMessage",
    "cloneGroupOffset", "queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey",
    "queryMsgByOffset", "queryCq", "printMsg", "consumeMessage", "sendMessage",
    "getConsumerConfig", "wipeWritePerm", "addWritePerm", "allocateMQ",
))  # fmt: skip
"""What operators use most: the interop test runs these."""
