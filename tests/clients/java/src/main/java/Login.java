import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** Whose requests they are: the file that CREDENTIALS_FILE names has a user and a secret, a line each. */
final class Login {
    private Login() {
    }

    /** What signs requests; null without such a file. */
    static RPCHook hook() {
        String file = System.getenv("CREDENTIALS_FILE");
        if (file == null) {
            return null;
        }
        try {
            List<String> lines = Files.readAllLines(Path.of(file));
            return new AclClientRPCHook(new SessionCredentials(lines.get(0), lines.get(1)));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
