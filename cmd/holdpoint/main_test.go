package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"holdpoint": main})
}

// patience bounds every wait of a script.
const patience = 20 * time.Second

// TestScripts runs the commands the way people do. Each script has a directory, a free port for a server, and a provider
// at $PROVIDER that counts what really arrives.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			port, err := freePort()
			if err != nil {
				return err
			}
			p := newProvider()
			e.Defer(p.server.Close)
			e.Values["provider"] = p
			e.Setenv("HOLDPOINT_LISTEN", "127.0.0.1:"+port)
			e.Setenv("PROVIDER", strings.TrimPrefix(p.server.URL, "http://"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready": waitReady, "keep": keepJSON, "post": postJSON, "arrived": arrived, "eventually": eventually, "replace": replaceText,
			"exits":    exits,
			"postgres": func(ts *testscript.TestScript, _ bool, args []string) { ts.Setenv(args[0], testenv.Postgres(t)) },
		},
	})
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// provider accepts every write and counts it.
type provider struct {
	server *httptest.Server
	writes atomic.Int64
}

func newProvider() *provider {
	p := &provider{}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPost {
			_, _ = io.WriteString(w, `{"results": []}`)
			return
		}
		n := p.writes.Add(1)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{"id": "reply-" + strconv.FormatInt(n, 10)})
	}))
	return p
}

// poll repeats try until it says yes.
func poll(ts *testscript.TestScript, what string, try func() bool) {
	for deadline := time.Now().Add(patience); !try(); {
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not come within %s", what, patience)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ready waits until the server answers.
func waitReady(ts *testscript.TestScript, _ bool, _ []string) {
	poll(ts, "the server", func() bool {
		resp, err := http.Get("http://" + ts.Getenv("HOLDPOINT_LISTEN") + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// keep FILE PATH NAME puts a member of a JSON file, named by its path a.b.0.c, into a variable.
func keepJSON(ts *testscript.TestScript, _ bool, args []string) {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
	for name := range strings.SplitSeq(args[1], ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[name]
		case []any:
			i, err := strconv.Atoi(name)
			ts.Check(err)
			if i >= len(x) {
				ts.Fatalf("%s: there is no element %d", args[1], i)
			}
			v = x[i]
		}
	}
	text, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		ts.Check(err)
		text = string(b)
	}
	ts.Setenv(args[2], text)
}

// post PATH TOKEN FILE STATUS sends a file, variables replaced, and keeps the answer in the file answer.
func postJSON(ts *testscript.TestScript, _ bool, args []string) {
	body := os.Expand(ts.ReadFile(args[2]), ts.Getenv)
	r, err := http.NewRequest(http.MethodPost, "http://"+ts.Getenv("HOLDPOINT_LISTEN")+args[0], strings.NewReader(body))
	ts.Check(err)
	r.Header.Set("Authorization", "Bearer "+args[1])
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	ts.Check(err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if strconv.Itoa(resp.StatusCode) != args[3] {
		ts.Fatalf("POST %s answered %d: %s", args[0], resp.StatusCode, answer)
	}
	ts.Check(os.WriteFile(ts.MkAbs("answer"), answer, 0o600))
}

// arrived N: exactly so many writes have reached the provider.
func arrived(ts *testscript.TestScript, _ bool, args []string) {
	if got := strconv.FormatInt(ts.Value("provider").(*provider).writes.Load(), 10); got != args[0] {
		ts.Fatalf("%s writes have arrived, not %s", got, args[0])
	}
}

// eventually TEXT COMMAND… runs holdpoint until its output contains the text.
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	poll(ts, args[0], func() bool {
		return ts.Exec(args[1], args[2:]...) == nil && strings.Contains(ts.ReadFile("stdout"), args[0])
	})
}

// replace OLD NEW FILE replaces text that must be there.
func replaceText(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[2])
	if !strings.Contains(text, args[0]) {
		ts.Fatalf("%s does not contain %s", args[2], args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(strings.ReplaceAll(text, args[0], args[1])), 0o600))
}

// exits CODE COMMAND… runs a command that must end with exactly this code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	if want := "exit status " + args[0]; err == nil || err.Error() != want {
		ts.Fatalf("%s: got %v, want %s", strings.Join(args[1:], " "), err, want)
	}
}

// everyCommand visits the tree.
func everyCommand(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, child := range c.Commands() {
		everyCommand(child, visit)
	}
}

func TestEveryCommandHasAnExampleAndJSON(t *testing.T) {
	seen := 0
	everyCommand(newRoot(&program{}), func(c *cobra.Command) {
		seen++
		require.NotEmpty(t, c.Short, c.CommandPath())
		require.NotEmpty(t, c.Example, c.CommandPath())
		require.Contains(t, c.Example, "holdpoint", c.CommandPath())
		require.NotNil(t, c.InheritedFlags().Lookup("json") != nil || c.Flags().Lookup("json") != nil, c.CommandPath())
		require.NotNil(t, c.RunE != nil || c.Run != nil, c.CommandPath())
	})
	require.Greater(t, seen, 45)
}

// TestExamplesName holds that an example names a command that exists, with flags that it has.
func TestExamplesNameCommandsAndFlags(t *testing.T) {
	root := newRoot(&program{})
	everyCommand(root, func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			line, _, _ = strings.Cut(line, " > ")
			words := strings.Fields(line)
			words = words[slices.Index(words, "holdpoint")+1:]
			named, rest, err := root.Find(words)
			require.NoError(t, err, line)
			require.NotSame(t, root, named, line)
			for _, w := range rest {
				if name, ok := strings.CutPrefix(w, "--"); ok {
					name, _, _ = strings.Cut(name, "=")
					require.True(t, named.Flags().Lookup(name) != nil || root.PersistentFlags().Lookup(name) != nil, "%s: --%s", line, name)
				}
			}
		}
	})
}

func TestUnknownCommandsAndFlagsAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{{"torture"}, {"runs", "torture"}, {"policy"}, {}, {"version", "--nonsense"}, {"version", "more"},
		{"approvals", "approve", "id"}, {"backup"}, {"drill"}} {
		var out, diagnostics bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &out, &diagnostics, nil)
		require.Equal(t, exitUsage, code, args)
		require.NotEmpty(t, diagnostics.String(), args)
		require.Empty(t, out.String(), args)
	}
}

func TestExitCodes(t *testing.T) {
	p := &program{working: true}
	for code, want := range map[holdpoint.Code]int{
		holdpoint.CodeInvalidRequest: exitUsage, holdpoint.CodeForbidden: exitNotAllowed, holdpoint.CodeUnauthenticated: exitNotAllowed,
		holdpoint.CodeStaleDigest: exitConflict, holdpoint.CodePolicyMoved: exitConflict, holdpoint.CodeLeaseLost: exitConflict,
		holdpoint.CodeExists: exitConflict, holdpoint.CodeNotFound: exitNotFound, holdpoint.CodeUnavailable: exitFailed, holdpoint.CodeInternal: exitFailed,
	} {
		require.Equal(t, want, p.exitCode(holdpoint.Errorf(code, "x")), code)
	}
	require.Equal(t, exitDone, p.exitCode(nil))
	require.Equal(t, exitFailed, p.exitCode(errFindings))
	require.Equal(t, exitUsage, p.exitCode(usagef("x")))
}

// TestErrorsAreOneSentence holds that a cause, which may hold an address or more, is not shown.
func TestErrorsAreOneSentence(t *testing.T) {
	var diagnostics bytes.Buffer
	p := &program{working: true, err: &diagnostics}
	require.Equal(t, exitFailed, p.end(holdpoint.Errorf(holdpoint.CodeUnavailable, "the store did not answer").Wrap(io.ErrUnexpectedEOF)))
	require.Equal(t, "holdpoint: the store did not answer\n", diagnostics.String())
	diagnostics.Reset()
	p.json = true
	require.Equal(t, exitNotFound, p.end(holdpoint.Errorf(holdpoint.CodeNotFound, "there is none")))
	require.JSONEq(t, `{"code": "not_found", "message": "there is none"}`, diagnostics.String())
}

func TestVisibleLeavesNothingThatSteersATerminal(t *testing.T) {
	require.Equal(t, "Grüße an 日本\n\tja", visible("Grüße an 日本\n\tja"))
	require.Equal(t, `a\u001b[31mred`, visible("a\x1b[31mred"))
	require.Equal(t, `\u202etxt.exe\u200b\u0085\u2028`, visible("\u202etxt.exe\u200b\u0085\u2028"))
	require.Equal(t, `\udb40\udc41`, visible("\U000E0041"))
	require.Equal(t, `\ufffd`, visible("\xff"))
	for _, s := range []string{"\u202e", "\U000E0041", "\u200b \x7f", "plain"} {
		b, err := json.Marshal(s)
		require.NoError(t, err)
		var back string
		require.NoError(t, json.Unmarshal([]byte(visible(string(b))), &back))
		require.Equal(t, s, back)
	}
}
