// A known call graph that leaves the stacks of goroutines: allocation, stack growth, calls of C and callbacks, preemption.
// Each goroutine has its place as a label; only the one at place 0 is called by C.
package main

/*
double c_outer(int n);
double c_calling(int n);
*/
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strconv"
)

var sink [4][]byte

//go:noinline
func allocate(place, n int) int {
	total := 0
	for i := 0; i < n; i++ {
		sink[place] = make([]byte, 3000+i%7*1000)
		total += len(sink[place])
	}
	return total
}

//go:noinline
func grow(place, depth int) int {
	var frame [400]byte
	frame[depth%400] = byte(depth)
	if depth == 0 {
		return allocate(place, 3)
	}
	return grow(place, depth-1) + int(frame[depth%400])
}

//go:noinline
func grown(place int) int {
	done := make(chan int)
	go func() { done <- grow(place, 40) }()
	return <-done
}

//go:noinline
func spin(n int) int {
	total := 0
	for i := 0; i < n; i++ {
		total = total*31 + i
	}
	return total
}

//export goCalled
func goCalled(n C.int) C.double { return C.double(calledBack(int(n))) }

//go:noinline
func calledBack(n int) int { return allocate(3, n/100) + spin(n) + int(C.c_outer(C.int(n))) }

//go:noinline
func work(place int) int {
	total := allocate(place, 100) + grown(place) + spin(20000) + int(C.c_outer(20000))
	if place == 0 {
		total += int(C.c_calling(10000))
	}
	return total
}

func loop(place int) {
	labels := pprof.Labels("place", strconv.Itoa(place))
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), labels))
	for {
		work(place)
	}
}

func main() {
	runtime.GOMAXPROCS(2)
	for place := 0; place < 3; place++ {
		go loop(place)
	}
	fmt.Println("ready")
	select {}
}
