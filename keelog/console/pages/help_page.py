"""Keys of the keyboard, words, what to do where a check fails; and the form of the login."""

from keelog.console.ask import Answer, Ask, ShownPage

CHECKS = (
    ("writer", "The process that appends. While it does not run, nothing is stored.",
     "Its cause is on the Node page. A damaged store: keelog store verify DIR --deep"),
    ("appends", "Whether sends are taken: not by a replica, a full disk, a damaged store.",
     "Free room, or see to the cause that the check names; reading goes on meanwhile."),
    ("readers", "The processes that answer pulls and look-ups.",
     "See their cause on the Node page."),
    ("queue_workers", "They write the queues. While one is late, consumers see messages later.",
     "It catches up by itself; more of them: --queue-workers N"),
    ("index_worker", "It writes the index of keys. While it is late, keys are found later.",
     "It catches up by itself."),
    ("gateway", "It serves RocketMQ's clients.", "See its cause on the Node page."),
    ("tasks", "They deliver delayed messages and look at the lag of groups.",
     "See their cause on the Node page."),
    ("console", "These pages. Nothing else of the node depends on them.",
     "See its cause on the Node page."),
    ("heartbeat", "A process that gives no sign of life is killed and started again.",
     "A disk that does not answer is the usual cause: dmesg, smartctl"),
    ("flush", "A flush of the log takes long.",
     "Look at the disk, and at who else writes to it: iostat -x 1"),
    ("delays", "Delayed messages wait, and nobody delivers them.",
     "Start the node with --remoting"),
    ("clock", "The newest store time lies ahead of the clock.", "Set the clock of the machine."),
    ("publications", "A batch of Spark is stuck half-way.", "keelog store staging ls DIR"),
    ("damage", "Processes have met damaged places; everything else is served.",
     "keelog store verify DIR --deep  says what is lost and how it is mended"),
    ("disk", "The disk is nearly full, or full.",
     "Free room, or keep messages for a shorter time: file_reserved_time"),
    ("masters", "Another master runs under this one's name.",
     "Stop the older one: keelog replica demote DIR --follow HOST:PORT"),
    ("followers", "Fewer followers are in sync than messages need.",
     "Look at the followers on the Node page, and at the machines they run on."),
    ("followers_process", "The process that serves followers.", "See its cause on the Node page."),
    ("following", "The replica does not follow its master.",
     "Its reason is on the Node page; it tries again by itself."),
    ("controllers", "No controller replies.", "Look whether the name servers run."),
    ("certificate", "The certificate ends soon, or new files of it cannot be used.",
     "Renew it: the node takes new files by itself."),
    ("exposure", "An end of the node is open to everybody.", "Make users: keelog user create"),
)  # fmt: skip
KEYS = (
    ("/", "the search box"),
    ("g o", "Overview"),
    ("g t", "Topics"),
    ("g g", "Groups"),
    ("g d", "Dead letters"),
    ("g w", "Waiting"),
    ("g s", "Store"),
    ("g n", "Node"),
    ("j k", "the next, the one before: rows, messages"),
    ("Enter", "opens the row"),
    ("c", "copies the address of this page"),
    ("p", "pauses the page, and goes on"),
    ("r", "asks anew"),
    ("u", "local time, or UTC"),
    ("?", "this page"),
)
WORDS = (
    ("topic", "messages of one kind, in one or more queues"),
    ("queue", "messages of a topic in their order; each has an offset, which never changes"),
    ("place", "queue and offset of a message: 3/1741"),
    ("log", "the one file of all messages, in the order in which they came"),
    ("group", "readers that share the queues of a topic (RocketMQ: consumer group)"),
    ("lag", "messages that a group has not committed"),
    ("in flight", "messages that members hold and have not committed"),
    ("dead letter", "a message that a group gave up (RocketMQ: %DLQ% topic)"),
    ("timer", "a message that is delivered at a time of its sender's choice"),
    ("retention", "how long messages are kept; a whole file of the log goes at once"),
)


def help_page(_ask: Ask) -> Answer:
    """`/help`"""
    return ShownPage("help.html", {"checks": CHECKS, "keys": KEYS, "words": WORDS})


def unlock(ask: Ask) -> Answer:
    """`/unlock`: the form. The key may be behind `#`, which a browser never sends."""
    back = ask.text("back")
    values = {"why": "", "back": back or "/", "has_users": ask.viewer.door.has_users}
    return ShownPage("unlock.html", values)
