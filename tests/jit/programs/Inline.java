/** Alpha and beta are loops without safepoints that the virtual machine inlines into work(), next to valueOf. */
public class Inline {
    static long sink;
    static byte[] kept;

    static long alpha(int n) {
        long x = 1;
        for (int i = 0; i < n; i++) x = x * 6364136223846793005L + i;
        return x;
    }

    static long beta(int n) {
        long x = 1;
        for (int i = 0; i < n; i++) x = x * 6364136223846793005L + i;
        return x;
    }

    static void work() {
        sink += alpha(300000);
        sink += beta(100000);
        kept = ("" + sink).getBytes();
    }

    public static void main(String[] args) {
        System.out.println("ready");
        while (true) work();
    }
}
