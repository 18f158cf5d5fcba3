package linear

import "golang.org/x/sys/unix"

// monotonic is the machine's monotonic clock in nanoseconds: it is the same in every process.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // the kernel has it
	}
	return now.Nano()
}
