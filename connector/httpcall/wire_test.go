package httpcall_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/connector/connectortest"
	"github.com/holdpoint/holdpoint/connector/httpcall"
)

// rawServer speaks TCP. It reads each request completely and then calls answer with the number of the request, counted
// over all connections; answer writes what it likes and says whether the connection stays open.
type rawServer struct {
	net.Listener
	requests atomic.Int32
	conns    atomic.Int32
	bytes    atomic.Int64
	wg       sync.WaitGroup
}

func startRaw(t *testing.T, answer func(n int32, w io.Writer) bool) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &rawServer{Listener: l}
	var mu sync.Mutex
	var open []net.Conn
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			s.wg.Go(func() { s.serve(c, answer) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func (s *rawServer) serve(c net.Conn, answer func(n int32, w io.Writer) bool) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(io.TeeReader(c, counter{&s.bytes}))
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if !answer(s.requests.Add(1), c) {
			return
		}
	}
}

func (s *rawServer) url() string { return "http://" + s.Addr().String() }

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

func answerOK(_ int32, w io.Writer) bool {
	_, err := io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"id\":\"x\"}")
	return err == nil
}

// The transport of net/http sends a request again when a reused connection dies under it, if it takes the request for
// replayable. Every shape that it takes for replayable must stay one request.
func TestOneAttemptIsOneRequest(t *testing.T) {
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key", "idempotency-key", "X-Other"} {
		for _, method := range []string{"POST", "PUT", "DELETE"} {
			for _, body := range []string{"", `{"text":"x"}`} {
				t.Run(fmt.Sprintf("%s %s %d", header, method, len(body)), func(t *testing.T) {
					s := startRaw(t, func(n int32, w io.Writer) bool { return n == 1 && answerOK(n, w) })
					cfg := config("")
					cfg.Render = func(v connector.Vars) (httpcall.Wire, error) {
						return httpcall.Wire{Method: method, URL: s.url(), Header: map[string]string{header: v.Key}, Body: []byte(body)}, nil
					}
					c := newConnector(t, cfg)
					first := prepare(t, c, connector.Vars{Key: "k1"}).Send(context.Background(), soon())
					require.Equal(t, holdpoint.Accepted, first.Result, first.Detail)

					second := prepare(t, c, connector.Vars{Key: "k2"}).Send(context.Background(), soon())
					require.Equal(t, holdpoint.Unclear, second.Result)
					require.Equal(t, holdpoint.PhaseWritten, second.Phase)
					require.Equal(t, holdpoint.ClassAmbiguous, second.Class)
					require.Equal(t, int32(2), s.requests.Load(), "the second request went out more than once")
				})
			}
		}
	}
}

func TestConnectionsAreReused(t *testing.T) {
	s := startRaw(t, answerOK)
	var points []string
	cfg := config(s.url())
	cfg.Reach = func(point string) { points = append(points, point) }
	c := newConnector(t, cfg)
	for range 5 {
		o := prepare(t, c, connector.Vars{Key: "k", Payload: []byte("{}")}).Send(context.Background(), soon())
		require.Equal(t, holdpoint.Accepted, o.Result, o.Detail)
	}
	c.Find(context.Background(), connector.Vars{Reference: "r"})
	require.Equal(t, int32(1), s.conns.Load())
	require.Equal(t, int32(6), s.requests.Load())
	require.Len(t, points, 5, "once for each write, never for a look-up")
	require.Equal(t, httpcall.PointBeforeFirstByte, points[0])
}

// A process that is held up between its decision and its first byte must not write past the deadline.
func TestNoByteAfterTheDeadline(t *testing.T) {
	for _, reused := range []bool{false, true} {
		t.Run(fmt.Sprintf("reused=%v", reused), func(t *testing.T) {
			s := startRaw(t, answerOK)
			var deadline time.Time
			cfg := config(s.url())
			cfg.Reach = func(string) { time.Sleep(time.Until(deadline)) }
			c := newConnector(t, cfg)
			v := connector.Vars{Key: "k", Payload: []byte("{}")}
			if reused {
				require.Equal(t, holdpoint.Accepted, prepare(t, c, v).Send(context.Background(), soon()).Result)
			}
			before := s.bytes.Load()
			deadline = time.Now().Add(30 * time.Millisecond)
			o := prepare(t, c, v).Send(context.Background(), deadline.Round(0))
			require.Equal(t, holdpoint.Rejected, o.Result)
			require.Equal(t, holdpoint.PhaseLocal, o.Phase)
			require.Equal(t, holdpoint.ClassLocalDeadline, o.Class)
			require.Equal(t, before, s.bytes.Load())
		})
	}
}

// The same with a real SIGSTOP: a child process is stopped right before its first byte and goes on after the deadline.
func TestStoppedProcessWritesNothing(t *testing.T) {
	const role = "HTTPCALL_TEST_STOPPED"
	if base := os.Getenv(role); base != "" {
		cfg := config(base)
		cfg.Reach = func(string) {
			fmt.Println("reached")
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		}
		before, err := time.Parse(time.RFC3339Nano, os.Getenv(role+"_BEFORE"))
		require.NoError(t, err)
		o := prepare(t, newConnector(t, cfg), connector.Vars{Key: "k", Payload: []byte("{}")}).Send(context.Background(), before)
		fmt.Printf("outcome %s %s %s\n", o.Result, o.Phase, o.Class)
		return
	}
	s := startRaw(t, answerOK)
	before := time.Now().Add(5 * time.Second)
	child := exec.Command(os.Args[0], "-test.run=^TestStoppedProcessWritesNothing$")
	child.Env = append(os.Environ(), role+"="+s.url(), role+"_BEFORE="+before.Format(time.RFC3339Nano))
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "reached\n", line)

	require.NoError(t, child.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { // the signal is sent; now every thread must have taken it
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", child.Process.Pid))
		require.NoError(t, err)
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			_, after, _ := strings.Cut(string(stat), ") ")
			if err != nil || !strings.HasPrefix(after, "T") {
				return false
			}
		}
		return len(tasks) > 0
	}, 10*time.Second, time.Millisecond)
	_, err = io.WriteString(stdin, "go\n")
	require.NoError(t, err)
	time.Sleep(time.Until(before.Add(10 * time.Millisecond)))
	require.NoError(t, child.Process.Signal(syscall.SIGCONT))

	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "outcome rejected P0 local_deadline\n", line)
	require.Zero(t, s.bytes.Load())
}

func TestDeadlineInTheMiddleIsPartial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	c := newConnector(t, config("http://"+l.Addr().String())) // connects through the backlog; nobody ever reads
	v := connector.Vars{Key: "k", Payload: bytes.Repeat([]byte("x"), 16<<20)}
	o := prepare(t, c, v).Send(context.Background(), time.Now().Add(200*time.Millisecond))
	require.Equal(t, holdpoint.Unclear, o.Result)
	require.Equal(t, holdpoint.PhasePartial, o.Phase)
	require.Equal(t, holdpoint.ClassAmbiguous, o.Class)
	require.Less(t, o.Took, connectortest.SuiteTimeout)
}

func TestEgressIsRefusedLocally(t *testing.T) {
	s := startRaw(t, answerOK)
	cfg := config(s.url())
	cfg.Guard = nil
	c := newConnector(t, cfg)
	o := prepare(t, c, connector.Vars{Key: "k", Payload: []byte("{}")}).Send(context.Background(), soon())
	require.Equal(t, holdpoint.Rejected, o.Result)
	require.Equal(t, holdpoint.PhaseLocal, o.Phase)
	require.Equal(t, "egress refused, loopback address", o.Detail)
	require.Zero(t, s.conns.Load())
	require.Equal(t, connector.Unclear, c.Find(context.Background(), connector.Vars{Reference: "r"}).State)
}

func TestAnswerIsBounded(t *testing.T) {
	s := startRaw(t, func(_ int32, w io.Writer) bool {
		_, _ = fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{\"id\":\"x\",\"pad\":\"%s", strings.Repeat("a", 5000))
		return true
	})
	cfg := config(s.url())
	cfg.MaxBody = 1000
	o := prepare(t, newConnector(t, cfg), connector.Vars{Key: "k", Payload: []byte("{}")}).Send(context.Background(), soon())
	require.Equal(t, holdpoint.Accepted, o.Result)
	require.Equal(t, holdpoint.ClassUnreferenced, o.Class)
	require.Equal(t, holdpoint.PhaseStatus, o.Phase)
	require.Less(t, o.Took, connectortest.SuiteTimeout)
}

// A server that answers once too often must not have its left-over answer taken for that of the next request.
func TestLeftOverAnswerIsNotBelieved(t *testing.T) {
	s := startRaw(t, func(_ int32, w io.Writer) bool {
		const answer = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"id\":\"%s\"}"
		_, err := fmt.Fprintf(w, answer+answer, "own", "old")
		return err == nil
	})
	log.SetOutput(io.Discard) // the transport reports what it finds on an idle connection
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	c := newConnector(t, config(s.url()))
	for range 50 {
		o := prepare(t, c, connector.Vars{Key: "k", Payload: []byte("{}")}).Send(context.Background(), soon())
		require.NotEqual(t, "old", o.ProviderID)
		if o.Result == holdpoint.Accepted {
			require.Equal(t, "own", o.ProviderID)
		}
	}
}

func TestGarbageIsNoAnswer(t *testing.T) {
	for name, garbage := range map[string]string{
		"no HTTP":      "220 mail.example ESMTP\r\n",
		"half a line":  "HTTP/1.1 20",
		"huge header":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"odd status":   "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
		"only interim": "HTTP/1.1 102 Processing\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := startRaw(t, func(_ int32, w io.Writer) bool {
				_, _ = io.WriteString(w, garbage)
				return false
			})
			o := prepare(t, newConnector(t, config(s.url())), connector.Vars{Key: "k", Payload: []byte("{}")}).Send(context.Background(), soon())
			require.Equal(t, holdpoint.Unclear, o.Result)
			require.Equal(t, holdpoint.ClassAmbiguous, o.Class)
			require.Equal(t, int32(1), s.requests.Load())
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	good := func() httpcall.Wire {
		return httpcall.Wire{Method: "POST", URL: "https://crm.example/notes?token=SECRET", Header: map[string]string{"X-A": "b"}}
	}
	tests := map[string]func(*httpcall.Wire){
		"GET":             func(w *httpcall.Wire) { w.Method = "GET" },
		"no method":       func(w *httpcall.Wire) { w.Method = "" },
		"odd method":      func(w *httpcall.Wire) { w.Method = "POST /x HTTP/1.1\r\nX:" },
		"scheme":          func(w *httpcall.Wire) { w.URL = "file:///etc/SECRET" },
		"no host":         func(w *httpcall.Wire) { w.URL = "https:///SECRET" },
		"user":            func(w *httpcall.Wire) { w.URL = "https://u:SECRET@crm.example/" },
		"unreadable URL":  func(w *httpcall.Wire) { w.URL = "https://crm.example/%zz?SECRET" },
		"control in URL":  func(w *httpcall.Wire) { w.URL = "https://crm.example/\r\nSECRET" },
		"header name":     func(w *httpcall.Wire) { w.Header = map[string]string{"X A": "SECRET"} },
		"header value":    func(w *httpcall.Wire) { w.Header = map[string]string{"X-A": "SECRET\r\nX-B: c"} },
		"framing":         func(w *httpcall.Wire) { w.Header = map[string]string{"transfer-encoding": "chunked"} },
		"host":            func(w *httpcall.Wire) { w.Header = map[string]string{"Host": "SECRET"} },
		"same name twice": func(w *httpcall.Wire) { w.Header = map[string]string{"X-A": "SECRET", "x-a": "2"} },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := config("")
			cfg.Render = func(connector.Vars) (httpcall.Wire, error) {
				w := good()
				spoil(&w)
				return w, nil
			}
			_, err := newConnector(t, cfg).Prepare(connector.Vars{})
			require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeRender})
			require.NotContains(t, err.Error(), "SECRET")
		})
	}
	cfg := config("")
	cfg.Render = func(connector.Vars) (httpcall.Wire, error) { return httpcall.Wire{}, fmt.Errorf("no such key: SECRET") }
	_, err := newConnector(t, cfg).Prepare(connector.Vars{})
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeRender})
	require.NotContains(t, err.Error(), "SECRET")
}

func TestFindWithoutLookup(t *testing.T) {
	cfg := config("")
	cfg.RenderLookup = nil
	require.Equal(t, connector.Unsupported, newConnector(t, cfg).Find(context.Background(), connector.Vars{}).State)
}

func TestFindJudgesOnlyCompleteSuccess(t *testing.T) {
	for name, response := range map[string]string{
		"404":       "HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\n\r\n{\"results\":[]}",
		"302":       "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
		"truncated": "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"results\":[]}",
		"no JSON":   "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>",
	} {
		t.Run(name, func(t *testing.T) {
			s := startRaw(t, func(_ int32, w io.Writer) bool {
				_, _ = io.WriteString(w, response)
				return false
			})
			f := newConnector(t, config(s.url())).Find(context.Background(), connector.Vars{Reference: "r"})
			require.Equal(t, connector.Unclear, f.State, f.Detail)
		})
	}
}

// An id that a provider makes up is stored and shown, whether it came with the answer or with a look-up.
func TestFindKeepsOnlyAFitProviderID(t *testing.T) {
	for id, want := range map[string]string{"n-1": "n-1", "a\x00b": "", "a\nb": "", strings.Repeat("x", 256): ""} {
		s := startRaw(t, func(_ int32, w io.Writer) bool {
			_, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			return false
		})
		cfg := config(s.url())
		cfg.JudgeLookup = func(int, []byte) (bool, bool, string, error) { return true, false, id, nil }
		f := newConnector(t, cfg).Find(context.Background(), connector.Vars{Reference: "r"})
		require.Equal(t, connector.Found, f.State, f.Detail)
		require.Equal(t, want, f.ProviderID)
	}
}
