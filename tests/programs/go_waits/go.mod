module waits

go 1.18
