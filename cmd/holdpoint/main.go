// Command holdpoint runs Holdpoint's server and everything that people do with it from a terminal.
//
// Commands that administer the store open it directly, and may run beside a server; all others are clients of the HTTP
// API. Settings come from flags, then the environment, then the file holdpoint.env. Every command answers as JSON with
// --json, and ends with 0 done, 1 failed, 2 usage, 3 not permitted, 4 conflict or lost, 5 not found.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())
	stop()
	os.Exit(code)
}

// run executes one command line and gives the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, diagnostics io.Writer, environ []string) int {
	p := &program{in: in, out: out, err: diagnostics, environ: environ}
	root := newRoot(p)
	root.SetArgs(append([]string{}, args...))
	return p.end(root.ExecuteContext(ctx))
}
