//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/client"
)

// server is one `holdpoint serve` in a process of its own.
type server struct {
	w     *world
	cmd   *exec.Cmd
	url   string // "" without role api
	log   string // path of what it says on its diagnostics stream
	said  chan string
	ended chan struct{}
	code  int // valid once ended is closed

	machine, ana, ben, otto *client.Client
}

// serving says how to start a server. Zero values: the binary under test, every role, actions enabled.
type serving struct {
	binary  string
	roles   string
	env     []string
	actions string // AI_ACTIONS_ENABLED; "-" leaves it out
}

// serve starts a server that answers requests when serve returns. It is stopped at the end of the test.
func (w *world) serve(how serving) *server {
	w.t.Helper()
	s := w.launch(how)
	if !s.up() {
		w.t.Fatalf("the server ended at its start with %d: %s", s.code, s.logged())
	}
	return s
}

// launch starts a server and returns at once; up waits for it. It is stopped at the end of the test.
func (w *world) launch(how serving) *server {
	w.t.Helper()
	s := &server{w: w, said: make(chan string, 1), ended: make(chan struct{})}
	path := how.binary
	if path == "" {
		path = binary(w.t)
	}
	args := []string{"serve", "--json", "--listen", "127.0.0.1:0"}
	if how.roles != "" {
		args = append(args, "--roles", how.roles)
	}
	log, err := os.CreateTemp(w.dir, "serve-*.log")
	require.NoError(w.t, err)
	defer log.Close()
	s.log = log.Name()
	s.cmd = exec.Command(path, args...)
	s.cmd.Dir, s.cmd.Stderr = w.dir, log
	s.cmd.Env = append(w.environ(), how.env...)
	if how.actions != "-" {
		s.cmd.Env = append(s.cmd.Env, "AI_ACTIONS_ENABLED="+map[bool]string{true: "true", false: how.actions}[how.actions == ""])
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, s.cmd.Start())
	go func() {
		var answer struct {
			Addr string `json:"addr"`
		}
		if json.NewDecoder(stdout).Decode(&answer) == nil {
			s.said <- answer.Addr
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = s.cmd.Wait()
		s.code = s.cmd.ProcessState.ExitCode()
		close(s.ended)
	}()
	w.t.Cleanup(s.end)
	return s
}

// up waits until the server answers requests, and reports false if it ended before.
func (s *server) up() bool {
	s.w.t.Helper()
	select {
	case addr := <-s.said:
		if addr == "" {
			return true
		}
		s.url = "http://" + addr
	case <-s.ended:
		return false
	case <-time.After(soon):
		s.w.t.Fatalf("the server said nothing in %s: %s", soon, s.logged())
	}
	s.machine, s.ana = client.New(s.url, s.w.key), client.New(s.url, s.w.anasToken)
	s.ben, s.otto = client.New(s.url, s.w.bensToken), client.New(s.url, s.w.ottosToken)
	eventually(s.w.t, soon, "the server is ready or has ended", func() bool { return s.over() || s.machine.Ready(s.w.t.Context()) == nil })
	return !s.over()
}

// over reports whether the process has ended.
func (s *server) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// logged is what the server has said on its diagnostics stream.
func (s *server) logged() string {
	text, err := os.ReadFile(s.log)
	require.NoError(s.w.t, err)
	return string(text)
}

func (s *server) signal(sig syscall.Signal) {
	s.w.t.Helper()
	require.NoError(s.w.t, s.cmd.Process.Signal(sig))
}

// kill ends the server as a power cut would.
func (s *server) kill() {
	s.w.t.Helper()
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// stop ends the server in order: it must exit with 0.
func (s *server) stop() {
	s.w.t.Helper()
	s.signal(syscall.SIGTERM)
	select {
	case <-s.ended:
		require.Zero(s.w.t, s.code, s.logged())
	case <-time.After(later):
		s.w.t.Fatalf("the server does not stop: %s", s.logged())
	}
}

// end makes sure, at the end of a test, that nothing runs on. A test that failed shows what the server said.
func (s *server) end() {
	select {
	case <-s.ended:
	default:
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	if s.w.t.Failed() {
		if text, _ := os.ReadFile(s.log); len(text) > 0 {
			s.w.t.Logf("%s said:\n%s", filepath.Base(s.log), lastLines(text, 40))
		}
	}
}

func lastLines(text []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}

// stopped reports whether the kernel has stopped the process, as SIGSTOP does.
func (s *server) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(rest, "T")
}

// call makes one raw request and gives status, header and body.
func call(t testing.TB, c *http.Client, method, url, token, body string) (int, http.Header, string) {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, in)
	require.NoError(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	return resp.StatusCode, resp.Header, string(out)
}
