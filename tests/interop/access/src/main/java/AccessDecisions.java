import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;
import org.apache.rocketmq.auth.authentication.model.Subject;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.chain.AclAuthorizationHandler;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.enums.Decision;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.exception.AuthorizationException;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Environment;
import org.apache.rocketmq.auth.authorization.model.Policy;
import org.apache.rocketmq.auth.authorization.model.PolicyEntry;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.authorization.provider.AuthorizationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.resource.ResourcePattern;
import org.apache.rocketmq.common.resource.ResourceType;

/** Reads cases as lines of JSON, and prints what RocketMQ's AclAuthorizationHandler decides: Allow, Deny or Nothing. */
public final class AccessDecisions {
    public static void main(String[] arguments) throws Exception {
        AuthConfig config = new AuthConfig();
        config.setAuthorizationMetadataProvider(OneList.class.getName());
        AclAuthorizationHandler handler = new AclAuthorizationHandler(config);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(decide(handler, JSON.parseObject(line)));
        }
        out.flush();
    }

    private static String decide(AclAuthorizationHandler handler, JSONObject found) {
        OneList.acl = aclOf(found);
        Resource wanted = Resource.of(
            ResourceType.getByName(found.getString("kind")), found.getString("name"), ResourcePattern.LITERAL);
        DefaultAuthorizationContext context = DefaultAuthorizationContext.of(
            User.of("alice"), wanted, actionsOf(found.getJSONArray("actions")), found.getString("source"));
        try {
            handler.handle(context, null).join();
            return "Allow";
        } catch (CompletionException | AuthorizationException error) {
            Throwable cause = error instanceof CompletionException ? error.getCause() : error;
            if (!(cause instanceof AuthorizationException)) {
                throw error;
            }
            return cause.getMessage().contains("the decision is deny") ? "Deny" : "Nothing";
        }
    }

    private static Acl aclOf(JSONObject found) {
        List<Policy> policies = new ArrayList<>();
        for (PolicyType type : PolicyType.values()) {
            JSONArray rows = found.getJSONArray(type.getName().toLowerCase());
            if (rows == null || rows.isEmpty()) {
                continue;
            }
            List<PolicyEntry> entries = new ArrayList<>();
            for (int i = 0; i < rows.size(); i++) {
                JSONObject row = rows.getJSONObject(i);
                JSONArray sources = row.getJSONArray("sourceIps");
                Environment environment = sources == null ? null : Environment.of(sources.toList(String.class));
                entries.add(PolicyEntry.of(Resource.of(row.getString("resource")),
                    actionsOf(row.getJSONArray("actions")), environment, Decision.getByName(row.getString("decision"))));
            }
            policies.add(Policy.of(type, entries));
        }
        return Acl.of(User.of("alice"), policies);
    }

    private static List<Action> actionsOf(JSONArray names) {
        List<Action> actions = new ArrayList<>();
        for (String name : names.toList(String.class)) {
            actions.add(Action.getByName(name));
        }
        return actions;
    }

    /** Gives the handler the list of the case at hand. */
    public static final class OneList implements AuthorizationMetadataProvider {
        static Acl acl;

        @Override
        public void initialize(AuthConfig config, Supplier<?> service) {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public CompletableFuture<Void> createAcl(Acl made) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Void> deleteAcl(Subject subject) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Void> updateAcl(Acl changed) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Acl> getAcl(Subject subject) {
            return CompletableFuture.completedFuture(acl);
        }

        @Override
        public CompletableFuture<List<Acl>> listAcl(String subjects, String resources) {
            throw new UnsupportedOperationException();
        }
    }
}
