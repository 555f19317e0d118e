import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

import java.io.BufferedWriter;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.zip.CRC32;

/**
 * The broker's side of the interop test: opens a store directory with RocketMQ's own store and either reports
 * everything it sees in there or appends messages to it. README.md beside the pom describes use and output.
 */
public final class StoreProbe {
    private static final int OK = 0;
    private static final int FAILED = 1;
    private static final int USAGE = 2;
    private static final int PROBLEMS = 3;
    private static final int TIMED_OUT = 4;

    private static final int PULL = 32;
    private static final int MAX_PROBLEMS_LISTED = 100;

    /** Options of this program; every other key=value is a property of MessageStoreConfig. */
    private static final Map<String, String> OWN_DEFAULTS = new HashMap<>();

    static {
        OWN_DEFAULTS.put("lookups", "");
        OWN_DEFAULTS.put("kill", "false");
        OWN_DEFAULTS.put("batches", "true");
        OWN_DEFAULTS.put("maxBody", "2000");
        OWN_DEFAULTS.put("seed", "1");
        OWN_DEFAULTS.put("limitSeconds", "300");
        OWN_DEFAULTS.put("fullStopWait", "false");
    }

    private final Map<String, String> own = new HashMap<>(OWN_DEFAULTS);
    private final Map<String, String> settings = new LinkedHashMap<>();
    private final Path root;
    private final JSONObject timings = new JSONObject();
    private MessageStoreConfig config;
    private DefaultMessageStore store;
    private boolean abortBefore;
    private boolean loaded;
    private long minAfterLoad;
    private long maxAfterLoad;
    private List<String> filesBefore;
    private final List<String> problems = new ArrayList<>();
    private int problemCount;

    private StoreProbe(Path root, String[] args, int from) {
        this.root = root;
        for (int i = from; i < args.length; i++) {
            int eq = args[i].indexOf('=');
            if (eq <= 0) {
                throw new UsageException("not of the form key=value: " + args[i]);
            }
            String key = args[i].substring(0, eq);
            String value = args[i].substring(eq + 1);
            if (own.containsKey(key)) {
                own.put(key, value);
            } else {
                settings.put(key, value);
            }
        }
    }

    public static void main(String[] args) {
        int code;
        try {
            code = run(args);
        } catch (UsageException e) {
            code = USAGE;
            complain(e.getMessage());
        } catch (Throwable e) {
            code = FAILED;
            complain(describe(e));
        }
        System.out.flush();
        System.err.flush();
        // The store leaves threads behind, so the process must be ended. exit() and not halt(): native libraries
        // unpacked into the temporary directory are removed by exit hooks.
        System.exit(code);
    }

    private static int run(String[] args) throws Exception {
        String mode = args.length == 0 ? "" : args[0];
        switch (mode) {
            case "facts":
            case "recover": {
                need(args, 3, mode + " <storeDir> <outDir> [key=value...]");
                StoreProbe probe = new StoreProbe(Paths.get(args[1]), args, 3);
                probe.watchdog();
                return probe.facts(Paths.get(args[2]));
            }
            case "append": {
                need(args, 5, "append <storeDir> <count> <topic:queues,...> <receipts.jsonl> [key=value...]");
                StoreProbe probe = new StoreProbe(Paths.get(args[1]), args, 5);
                probe.watchdog();
                return probe.append(Integer.parseInt(args[2]), args[3], Paths.get(args[4]));
            }
            default:
                throw new UsageException("usage: StoreProbe facts|recover|append ...");
        }
    }

    private static void need(String[] args, int count, String usage) {
        if (args.length < count) {
            throw new UsageException("usage: StoreProbe " + usage);
        }
    }

    private static void complain(String text) {
        System.err.println(String.valueOf(text).replace('\n', ' ').replace('\r', ' '));
    }

    private static String describe(Throwable e) {
        Throwable cause = e;
        while (cause instanceof InvocationTargetException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String at = cause.getStackTrace().length == 0 ? "" : " at " + cause.getStackTrace()[0];
        return cause.getClass().getName() + ": " + cause.getMessage() + at;
    }

    private void watchdog() {
        long limit = Long.parseLong(own.get("limitSeconds")) * 1000;
        Thread thread = new Thread(() -> {
            pause(limit);
            complain("gave up after " + limit + " ms");
            Runtime.getRuntime().halt(TIMED_OUT);
        }, "probe-watchdog");
        thread.setDaemon(true);
        thread.start();
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    // ---------------------------------------------------------------- opening and stopping

    private void open() throws Exception {
        config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setHaListenPort(0);
        // A probe must never delete what it was asked to look at, however old the files and full the disk.
        config.setFileReservedTime(24 * 365 * 100);
        config.setCleanFileForciblyEnable(false);
        for (Map.Entry<String, String> e : settings.entrySet()) {
            set(config, e.getKey(), e.getValue());
        }
        filesBefore = files();
        abortBefore = Files.exists(root.resolve("abort"));

        long t0 = System.nanoTime();
        store = new DefaultMessageStore(config, new BrokerStatsManager("probe", false),
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { },
            new BrokerConfig(), new ConcurrentHashMap<String, TopicConfig>());
        loaded = store.load();
        lap("loadMs", t0);
        if (!loaded) {
            return;
        }
        minAfterLoad = store.getMinPhyOffset();
        maxAfterLoad = store.getMaxPhyOffset();
        long t1 = System.nanoTime();
        store.start();
        waitForDispatch();
        lap("startMs", t1);
    }

    private void waitForDispatch() {
        while (store.dispatchBehindBytes() > 0) {
            pause(2);
        }
    }

    /**
     * The store's stop contains one unconditional sleep of several seconds, after its schedulers have ended. Unless
     * fullStopWait is set this cuts that sleep short, and nothing else.
     */
    private void stop() throws InterruptedException {
        long t0 = System.nanoTime();
        if (!Boolean.parseBoolean(own.get("fullStopWait"))) {
            Thread stopping = Thread.currentThread();
            Thread helper = new Thread(() -> {
                while (!store.isShutdown() || !sleepsInShutdown(stopping)) {
                    pause(5);
                }
                stopping.interrupt();
            }, "probe-stop");
            helper.setDaemon(true);
            helper.start();
        }
        store.shutdown();
        lap("stopMs", t0);
        if (Files.exists(root.resolve("abort"))) {
            throw new IllegalStateException("the stop was not clean: abort is still there");
        }
    }

    private static boolean sleepsInShutdown(Thread thread) {
        StackTraceElement[] stack = thread.getStackTrace();
        return stack.length > 1
            && stack[0].getClassName().equals("java.lang.Thread") && stack[0].getMethodName().equals("sleep")
            && stack[1].getClassName().equals(DefaultMessageStore.class.getName())
            && stack[1].getMethodName().equals("shutdown");
    }

    private void lap(String name, long since) {
        timings.put(name, (System.nanoTime() - since) / 1_000_000);
    }

    private static void set(MessageStoreConfig config, String key, String text) throws Exception {
        String setter = "set" + Character.toUpperCase(key.charAt(0)) + key.substring(1);
        Method asText = null;
        for (Method m : MessageStoreConfig.class.getMethods()) {
            if (!m.getName().equals(setter) || m.getParameterCount() != 1) {
                continue;
            }
            Class<?> type = m.getParameterTypes()[0];
            if (type == String.class) {
                asText = m;
                continue;
            }
            Object value = convert(type, key, text);
            if (value != null) {
                m.invoke(config, value);
                return;
            }
        }
        if (asText == null) {
            throw new UsageException("no such setting: " + key);
        }
        asText.invoke(config, text);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object convert(Class<?> type, String key, String text) {
        try {
            if (type == int.class) {
                return Integer.valueOf(text);
            } else if (type == long.class) {
                return Long.valueOf(text);
            } else if (type == double.class) {
                return Double.valueOf(text);
            } else if (type == boolean.class) {
                if (!text.equals("true") && !text.equals("false")) {
                    throw new IllegalArgumentException();
                }
                return Boolean.valueOf(text);
            } else if (type.isEnum()) {
                return Enum.valueOf((Class<Enum>) type, text);
            }
            return null;
        } catch (IllegalArgumentException e) {
            throw new UsageException("bad value for " + key + ": " + text);
        }
    }

    /** Every file below the store's root, by its path from there. */
    private List<String> files() throws IOException {
        List<String> files = new ArrayList<>();
        if (Files.isDirectory(root)) {
            try (var tree = Files.walk(root)) {
                tree.filter(Files::isRegularFile).forEach(p -> files.add(root.relativize(p).toString()));
            }
        }
        files.sort(null);
        return files;
    }

    // ---------------------------------------------------------------- facts

    private int facts(Path out) throws Exception {
        Files.createDirectories(out);
        open();
        if (!loaded) {
            writeState(out, 0, new ArrayList<>(), new ArrayList<>());
            complain("load returned false");
            return FAILED;
        }
        List<JSONObject> blanks = new ArrayList<>();
        long t0 = System.nanoTime();
        long messages = writeMessages(out, blanks);
        lap("messagesMs", t0);

        long t1 = System.nanoTime();
        List<ConsumeQueueInterface> queues = queues();
        List<JSONObject> queueStates = new ArrayList<>();
        for (ConsumeQueueInterface q : queues) {
            queueStates.add(queueState(q));
        }
        writeUnits(out, queues);
        lap("cqMs", t1);

        long t2 = System.nanoTime();
        writePulls(out, queues);
        lap("pullsMs", t2);

        if (!own.get("lookups").isEmpty()) {
            long t3 = System.nanoTime();
            writeLookups(out, Paths.get(own.get("lookups")));
            lap("lookupsMs", t3);
        }
        long min = store.getMinPhyOffset();
        long max = store.getMaxPhyOffset();
        long confirm = store.getConfirmOffset();
        stop();
        JSONObject state = new JSONObject();
        state.put("minPhyOffset", min);
        state.put("maxPhyOffset", max);
        state.put("confirmOffset", confirm);
        writeState(out, messages, blanks, queueStates, state);
        summary("messages", messages, min, max);
        if (problemCount > 0) {
            complain(problemCount + " problems, the first: " + problems.get(0));
            return PROBLEMS;
        }
        return OK;
    }

    private void writeState(Path out, long messages, List<JSONObject> blanks, List<JSONObject> queues)
        throws Exception {
        writeState(out, messages, blanks, queues, new JSONObject());
    }

    private void writeState(Path out, long messages, List<JSONObject> blanks, List<JSONObject> queues,
        JSONObject offsets) throws Exception {
        JSONObject state = new JSONObject();
        state.put("loaded", loaded);
        state.put("abortFilePresent", abortBefore);
        state.put("recovery", abortBefore ? "abnormal" : "normal");
        JSONObject used = new JSONObject();
        used.put("mappedFileSizeCommitLog", config.getMappedFileSizeCommitLog());
        used.put("mappedFileSizeConsumeQueue", config.getMappedFileSizeConsumeQueue());
        used.put("maxHashSlotNum", config.getMaxHashSlotNum());
        used.put("maxIndexNum", config.getMaxIndexNum());
        used.put("maxMessageSize", config.getMaxMessageSize());
        used.put("enabledAppendPropCRC", config.isEnabledAppendPropCRC());
        used.put("forceVerifyPropCRC", config.isForceVerifyPropCRC());
        used.put("flushDiskType", config.getFlushDiskType().name());
        used.put("rocketmqVersion", rocketmqVersion());
        state.put("config", used);
        state.put("settings", settings);
        if (loaded) {
            state.put("minPhyOffsetAfterLoad", minAfterLoad);
            state.put("maxPhyOffsetAfterLoad", maxAfterLoad);
            state.putAll(offsets);
            state.put("messages", messages);
            state.put("problemCount", problemCount);
            state.put("problems", problems);
            state.put("blanks", blanks);
            state.put("queues", queues);
        }
        List<String> after = files();
        List<String> removed = new ArrayList<>(filesBefore);
        removed.removeAll(after);
        List<String> added = new ArrayList<>(after);
        added.removeAll(filesBefore);
        state.put("commitLogFilesBefore", logFiles(filesBefore));
        state.put("commitLogFilesAfter", logFiles(after));
        state.put("removedByRecovery", removed);
        state.put("addedByRecovery", added);
        state.put("abortFileAfter", Files.exists(root.resolve("abort")));
        state.put("timings", timings);
        try (BufferedWriter w = Files.newBufferedWriter(out.resolve("state.json"))) {
            line(w, state);
        }
    }

    private static List<String> logFiles(List<String> files) {
        List<String> names = new ArrayList<>();
        for (String file : files) {
            if (file.startsWith("commitlog/")) {
                names.add(file.substring("commitlog/".length()));
            }
        }
        return names;
    }

    private static String rocketmqVersion() {
        String name = DefaultMessageStore.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        return name.replaceFirst(".*rocketmq-store-", "").replaceFirst("\\.jar$", "");
    }

    /** Walks the log record by record from its first byte to its end; returns how many records there are. */
    private long writeMessages(Path out, List<JSONObject> blanks) throws Exception {
        CommitLog log = store.getCommitLog();
        long fileSize = config.getMappedFileSizeCommitLog();
        long offset = store.getMinPhyOffset();
        long end = store.getMaxPhyOffset();
        long count = 0;
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        try (BufferedWriter w = Files.newBufferedWriter(out.resolve("messages.jsonl"))) {
            while (offset < end) {
                SelectMappedBufferResult region = log.getData(offset, false);
                if (region == null) {
                    problem("no data at " + offset);
                    break;
                }
                try {
                    ByteBuffer rest = region.getByteBuffer();
                    long next = (offset / fileSize + 1) * fileSize;
                    while (offset < next && rest.remaining() >= 8) {
                        int start = rest.position();
                        DispatchRequest check = store.checkMessageAndReturnSize(rest, true, false, true);
                        if (check.isSuccess() && check.getMsgSize() == 0) {
                            blanks.add(blank(offset, rest.getInt(start), next - offset));
                            offset = next;
                        } else if (check.isSuccess()) {
                            ByteBuffer record = rest.duplicate();
                            record.position(start).limit(start + check.getMsgSize());
                            line(w, message(offset, record.slice(), check, sha));
                            count++;
                            offset += check.getMsgSize();
                            rest.position(start + check.getMsgSize());
                        } else {
                            problem("unreadable record at " + offset);
                            offset = next;
                        }
                    }
                    if (offset < next && offset < end) {
                        problem("unreadable bytes at " + offset);
                        offset = next;
                    }
                } finally {
                    region.release();
                }
            }
        }
        return count;
    }

    private static JSONObject blank(long offset, int sizeField, long rest) {
        JSONObject blank = new JSONObject();
        blank.put("physicalOffset", offset);
        blank.put("sizeField", sizeField);
        blank.put("rest", rest);
        return blank;
    }

    private JSONObject message(long offset, ByteBuffer record, DispatchRequest check, MessageDigest sha)
        throws Exception {
        byte[] raw = new byte[record.remaining()];
        record.duplicate().get(raw);
        MessageExt m = MessageDecoder.decode(record.duplicate(), true, false);
        JSONObject o = new JSONObject();
        if (m == null) {
            problem("the record at " + offset + " is not decodable");
            o.put("physicalOffset", offset);
            o.put("storeSize", raw.length);
            return o;
        }
        if (m.getCommitLogOffset() != offset) {
            problem("the record at " + offset + " says it is at " + m.getCommitLogOffset());
        }
        int transaction = MessageSysFlag.getTransactionValue(m.getSysFlag());
        byte[] body = m.getBody() == null ? new byte[0] : m.getBody();
        CRC32 crc = new CRC32();
        crc.update(raw);
        o.put("physicalOffset", m.getCommitLogOffset());
        o.put("storeSize", m.getStoreSize());
        o.put("topic", m.getTopic());
        o.put("queueId", m.getQueueId());
        o.put("queueOffset", m.getQueueOffset());
        o.put("msgId", m.getMsgId());
        o.put("bornTimestamp", m.getBornTimestamp());
        o.put("storeTimestamp", m.getStoreTimestamp());
        o.put("bornHost", host(m.getBornHost()));
        o.put("storeHost", host(m.getStoreHost()));
        o.put("sysFlag", m.getSysFlag());
        o.put("flag", m.getFlag());
        o.put("bodyCRC", m.getBodyCRC());
        o.put("reconsumeTimes", m.getReconsumeTimes());
        o.put("preparedTransactionOffset", m.getPreparedTransactionOffset());
        o.put("magic", record.getInt(4));
        o.put("recordCrc32", Long.toString(crc.getValue()));
        o.put("tagsCode", check.getTagsCode());
        o.put("queued", transaction == MessageSysFlag.TRANSACTION_NOT_TYPE
            || transaction == MessageSysFlag.TRANSACTION_COMMIT_TYPE);
        o.put("properties", m.getProperties() == null ? null : new TreeMap<>(m.getProperties()));
        o.put("propertiesString", Base64.getEncoder().encodeToString(storedProperties(record, m)));
        o.put("bodyLength", body.length);
        o.put("bodySha256", hex(sha.digest(body)));
        return o;
    }

    /** The property bytes as they are stored; the decoder hands out only the map. */
    private static byte[] storedProperties(ByteBuffer record, MessageExt m) {
        int flag = m.getSysFlag();
        int born = (flag & MessageSysFlag.BORNHOST_V6_FLAG) == 0 ? 8 : 20;
        int stored = (flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG) == 0 ? 8 : 20;
        int at = 68 + born + stored;
        at += 4 + record.getInt(at);
        at += record.getInt(4) == MessageDecoder.MESSAGE_MAGIC_CODE_V2 ? 2 + record.getShort(at) : 1 + record.get(at);
        byte[] properties = new byte[Math.max(0, record.getShort(at))];
        ByteBuffer view = record.duplicate();
        view.position(at + 2);
        view.get(properties);
        return properties;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        return hex(inet.getAddress().getAddress()) + ":" + inet.getPort();
    }

    private static String hex(byte[] bytes) {
        return java.util.HexFormat.of().formatHex(bytes);
    }

    private List<ConsumeQueueInterface> queues() {
        TreeMap<String, TreeMap<Integer, ConsumeQueueInterface>> sorted = new TreeMap<>();
        store.getConsumeQueueTable().forEach((topic, byId) -> sorted.put(topic, new TreeMap<>(byId)));
        List<ConsumeQueueInterface> queues = new ArrayList<>();
        sorted.values().forEach(byId -> queues.addAll(byId.values()));
        return queues;
    }

    private JSONObject queueState(ConsumeQueueInterface q) throws Exception {
        JSONObject o = new JSONObject();
        o.put("topic", q.getTopic());
        o.put("queueId", q.getQueueId());
        o.put("minOffset", q.getMinOffsetInQueue());
        o.put("maxOffset", q.getMaxOffsetInQueue());
        o.put("minLogicOffset", q.getMinLogicOffset());
        o.put("maxPhysicOffset", q.getMaxPhysicOffset());
        o.put("nextAssignedOffset", store.getMaxOffsetInQueue(q.getTopic(), q.getQueueId(), false));
        return o;
    }

    private void writeUnits(Path out, List<ConsumeQueueInterface> queues) throws Exception {
        try (BufferedWriter w = Files.newBufferedWriter(out.resolve("cq.jsonl"))) {
            for (ConsumeQueueInterface q : queues) {
                long index = q.getMinOffsetInQueue();
                long max = q.getMaxOffsetInQueue();
                while (index < max) {
                    ReferredIterator<CqUnit> units = q.iterateFrom(index);
                    if (units == null) {
                        problem("no unit " + index + " in " + q.getTopic() + "/" + q.getQueueId());
                        break;
                    }
                    long from = index;
                    try {
                        while (index < max && units.hasNext()) {
                            CqUnit unit = units.next();
                            JSONObject o = new JSONObject();
                            o.put("topic", q.getTopic());
                            o.put("queueId", q.getQueueId());
                            o.put("index", unit.getQueueOffset());
                            o.put("physicalOffset", unit.getPos());
                            o.put("size", unit.getSize());
                            o.put("tagsCode", unit.getTagsCode());
                            line(w, o);
                            index = unit.getQueueOffset() + unit.getBatchNum();
                        }
                    } finally {
                        units.release();
                    }
                    if (index == from) {
                        problem("no unit " + index + " in " + q.getTopic() + "/" + q.getQueueId());
                        break;
                    }
                }
            }
        }
    }

    /** Consumes every queue from its first to its last message and checks every record pulled. */
    private void writePulls(Path out, List<ConsumeQueueInterface> queues) throws Exception {
        try (BufferedWriter w = Files.newBufferedWriter(out.resolve("pulls.jsonl"))) {
            for (ConsumeQueueInterface q : queues) {
                String where = q.getTopic() + "/" + q.getQueueId();
                long offset = q.getMinOffsetInQueue();
                long max = q.getMaxOffsetInQueue();
                long messages = 0;
                long bytes = 0;
                int pulls = 0;
                String first = null;
                String last = null;
                do {
                    GetMessageResult r = store.getMessage("probe", q.getTopic(), q.getQueueId(), offset, PULL, null);
                    if (r == null) {
                        problem("no answer to a pull of " + where + " at " + offset);
                        break;
                    }
                    try {
                        pulls++;
                        last = r.getStatus().name();
                        first = first == null ? last : first;
                        List<Long> indexes = r.getMessageQueueOffset();
                        for (int i = 0; i < r.getMessageBufferList().size(); i++) {
                            ByteBuffer record = r.getMessageBufferList().get(i);
                            bytes += record.remaining();
                            MessageExt m = MessageDecoder.decode(record.duplicate(), true, false);
                            long index = indexes.get(i);
                            // A light queue has records of other topics, with the offsets of those.
                            boolean own = m != null && (q.getTopic().startsWith("%LMQ%")
                                || m.getTopic().equals(q.getTopic()) && m.getQueueId() == q.getQueueId()
                                && m.getQueueOffset() == index);
                            if (!own || m.getStoreSize() != record.remaining()) {
                                problem("wrong record pulled from " + where + " at " + index);
                            }
                            messages++;
                        }
                        if (r.getNextBeginOffset() <= offset && offset < max) {
                            problem("a pull of " + where + " at " + offset + " leads nowhere: " + last);
                            break;
                        }
                        offset = r.getNextBeginOffset();
                    } finally {
                        r.release();
                    }
                } while (offset < max);
                JSONObject o = new JSONObject();
                o.put("topic", q.getTopic());
                o.put("queueId", q.getQueueId());
                o.put("messages", messages);
                o.put("bytes", bytes);
                o.put("pulls", pulls);
                o.put("firstStatus", first);
                o.put("lastStatus", last);
                line(w, o);
            }
        }
    }

    private void writeLookups(Path out, Path keys) throws Exception {
        int normally = config.getMaxMsgsNumBatch();
        try (var lines = Files.lines(keys, StandardCharsets.UTF_8);
             BufferedWriter w = Files.newBufferedWriter(out.resolve("lookups.jsonl"))) {
            for (String text : (Iterable<String>) lines::iterator) {
                if (text.isBlank()) {
                    continue;
                }
                JSONObject ask = JSON.parseObject(text);
                int maxNum = ask.containsKey("maxNum") ? ask.getIntValue("maxNum") : normally;
                long begin = ask.containsKey("begin") ? ask.getLongValue("begin") : 0;
                long end = ask.containsKey("end") ? ask.getLongValue("end") : Long.MAX_VALUE;
                config.setMaxMsgsNumBatch(Math.max(normally, maxNum));
                List<Long> found = store.getIndexService()
                    .queryOffset(ask.getString("topic"), ask.getString("key"), maxNum, begin, end).getPhyOffsets();
                JSONObject o = new JSONObject();
                o.put("topic", ask.getString("topic"));
                o.put("key", ask.getString("key"));
                o.put("maxNum", maxNum);
                o.put("begin", begin);
                o.put("end", end);
                o.put("phyOffsets", found);
                line(w, o);
            }
        }
    }

    // ---------------------------------------------------------------- append

    private int append(int count, String topicList, Path receipts) throws Exception {
        List<Object[]> targets = targets(topicList);
        open();
        if (!loaded) {
            complain("load returned false");
            return FAILED;
        }
        boolean batches = Boolean.parseBoolean(own.get("batches"));
        boolean kill = Boolean.parseBoolean(own.get("kill"));
        Random random = new Random(Long.parseLong(own.get("seed")));
        long t0 = System.nanoTime();
        try (BufferedWriter w = Files.newBufferedWriter(receipts)) {
            int done = 0;
            int calls = 0;
            while (done < count) {
                Object[] target = targets.get(calls % targets.size());
                String topic = (String) target[0];
                int queueId = (Integer) target[1];
                // Every tenth call carries a batch of two to eight messages.
                int size = batches && calls % 10 == 9 ? Math.min(2 + random.nextInt(7), count - done) : 1;
                if (size > 1) {
                    putBatch(w, topic, queueId, done, size, random);
                } else {
                    putOne(w, topic, queueId, done, random);
                }
                w.flush();
                done += size;
                calls++;
            }
        }
        if (kill) {
            // Exactly what the caller asked for: no stop, no hooks, `abort` stays.
            Runtime.getRuntime().halt(OK);
        }
        lap("appendMs", t0);
        waitForDispatch();
        long min = store.getMinPhyOffset();
        long max = store.getMaxPhyOffset();
        stop();
        summary("appended", count, min, max);
        return OK;
    }

    private static List<Object[]> targets(String list) {
        List<Object[]> targets = new ArrayList<>();
        for (String part : list.split(",")) {
            int colon = part.lastIndexOf(':');
            if (colon <= 0) {
                throw new UsageException("not of the form topic:queues: " + part);
            }
            int queues = Integer.parseInt(part.substring(colon + 1));
            for (int q = 0; q < queues; q++) {
                targets.add(new Object[] {part.substring(0, colon), q});
            }
        }
        if (targets.isEmpty()) {
            throw new UsageException("no queue to append to");
        }
        return targets;
    }

    private void putOne(BufferedWriter w, String topic, int queueId, int number, Random random) throws Exception {
        Message content = content(topic, number, random);
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        m.setTopic(topic);
        m.setFlag(content.getFlag());
        m.setBody(content.getBody());
        MessageAccessor.setProperties(m, content.getProperties());
        fill(m, queueId, random);
        m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
        m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(m.getTags()));
        PutMessageResult r = store.putMessage(m);
        stored(r, number);
        receipt(w, content, queueId, r.getAppendMessageResult().getLogicsOffset(),
            r.getAppendMessageResult().getMsgId(), r.getAppendMessageResult().getStoreTimestamp(), -1);
    }

    private void putBatch(BufferedWriter w, String topic, int queueId, int number, int size, Random random)
        throws Exception {
        List<Message> contents = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            contents.add(content(topic, number + i, random));
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(topic);
        batch.setBody(MessageDecoder.encodeMessages(contents));
        fill(batch, queueId, random);
        PutMessageResult r = store.putMessages(batch);
        stored(r, number);
        String[] ids = r.getAppendMessageResult().getMsgId().split(",");
        if (ids.length != size) {
            throw new IllegalStateException(ids.length + " ids for a batch of " + size);
        }
        for (int i = 0; i < size; i++) {
            receipt(w, contents.get(i), queueId, r.getAppendMessageResult().getLogicsOffset() + i, ids[i],
                r.getAppendMessageResult().getStoreTimestamp(), number);
        }
    }

    private Message content(String topic, int number, Random random) {
        byte[] body = new byte[random.nextInt(Integer.parseInt(own.get("maxBody")) + 1)];
        random.nextBytes(body);
        Message m = new Message();
        m.setTopic(topic);
        m.setFlag(random.nextInt());
        m.setBody(body);
        m.setKeys(number % 3 == 0 ? "key-" + number + " shared-" + number % 7 : "key-" + number);
        m.setTags(number % 5 == 4 ? "été" : "Tag" + (char) ('A' + number % 4));
        m.putUserProperty("number", Integer.toString(number));
        MessageClientIDSetter.setUniqID(m);
        return m;
    }

    private static void fill(MessageExtBrokerInner m, int queueId, Random random) throws Exception {
        m.setQueueId(queueId);
        m.setSysFlag(0);
        m.setReconsumeTimes(0);
        m.setBornTimestamp(System.currentTimeMillis());
        m.setBornHost(new InetSocketAddress(
            InetAddress.getByName(random.nextInt(8) == 0 ? "fd00::1:2" : "192.0.2.7"), 40000 + random.nextInt(1000)));
        m.setStoreHost(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 10911));
    }

    private static void stored(PutMessageResult r, int number) {
        if (!r.isOk() || r.getAppendMessageResult() == null || !r.getAppendMessageResult().isOk()) {
            throw new IllegalStateException("message " + number + " was not stored: " + r.getPutMessageStatus());
        }
    }

    private static void receipt(BufferedWriter w, Message m, int queueId, long queueOffset, String msgId,
        long storeTimestamp, int batch) throws Exception {
        JSONObject o = new JSONObject();
        o.put("topic", m.getTopic());
        o.put("queueId", queueId);
        o.put("queueOffset", queueOffset);
        o.put("physicalOffset", MessageDecoder.decodeMessageId(msgId).getOffset());
        o.put("msgId", msgId);
        o.put("storeTimestamp", storeTimestamp);
        o.put("uniqKey", m.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
        o.put("keys", m.getKeys());
        o.put("tags", m.getTags());
        o.put("flag", m.getFlag());
        o.put("properties", new TreeMap<>(m.getProperties()));
        o.put("bodyLength", m.getBody().length);
        o.put("bodySha256", hex(MessageDigest.getInstance("SHA-256").digest(m.getBody())));
        o.put("batch", batch < 0 ? null : batch);
        line(w, o);
    }

    // ---------------------------------------------------------------- output

    private void problem(String text) {
        problemCount++;
        if (problems.size() < MAX_PROBLEMS_LISTED) {
            problems.add(text);
        }
    }

    private static void line(BufferedWriter w, JSONObject o) throws IOException {
        w.write(JSON.toJSONString(o, JSONWriter.Feature.WriteNulls, JSONWriter.Feature.EscapeNoneAscii));
        w.write('\n');
    }

    private void summary(String what, long count, long min, long max) {
        JSONObject o = new JSONObject();
        o.put(what, count);
        o.put("minPhyOffset", min);
        o.put("maxPhyOffset", max);
        o.put("timings", timings);
        System.out.println(JSON.toJSONString(o));
    }

    private static final class UsageException extends RuntimeException {
        UsageException(String message) {
            super(message);
        }
    }
}
