// A thread that sleeps in a native method which needs its frame pointer, called from Java.
import java.net.ServerSocket;
import java.net.Socket;

public class Reader {
    public static void main(String[] arguments) throws Exception {
        Thread.currentThread().setName("reader whose name has more than 15 bytes");
        try (ServerSocket server = new ServerSocket(0);
                Socket client = new Socket("127.0.0.1", server.getLocalPort());
                Socket accepted = server.accept()) {
            System.out.println("ready");
            client.getInputStream().read();
        }
    }
}
