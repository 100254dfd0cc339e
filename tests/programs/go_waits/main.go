// Goroutines that wait in known ways. It prints their stacks as Go's runtime sees them, and then a line "ready".
package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

type box struct{ lock sync.Mutex }

func (b *box) inlined() { b.lock.Lock() }

//go:noinline
func (b *box) locked(n int) {
	if n > 0 {
		b.locked(n - 1)
		return
	}
	b.inlined()
}

//go:noinline
func receive(from chan int) int { return <-from }

//go:noinline
func choose(one, two chan int) {
	select {
	case <-one:
	case two <- 1:
	}
}

func main() {
	held := &box{}
	held.lock.Lock()
	never := make(chan int)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	for i := 0; i < 3; i++ {
		go func() { receive(never) }()
	}
	go func() { choose(never, make(chan int)) }()
	go func() { held.locked(5) }()
	go func() { time.Sleep(time.Hour) }()
	go func() { _, _ = listener.Accept() }()
	time.Sleep(300 * time.Millisecond)
	text := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "%s", text[:runtime.Stack(text, true)])
	fmt.Println("ready")
	select {}
}
