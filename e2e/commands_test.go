//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// TestFirstRun takes the way that the reference describes from an empty directory to the first effect, step by step and
// with the commands alone where there is one.
func TestFirstRun(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := &world{t: t, dir: t.TempDir()}
		if p == postgres {
			w.env = append(w.env, "HOLDPOINT_DB="+testenv.Postgres(t))
		}
		var err error
		w.provider, err = mirror.Start("127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.provider.Close()) })

		// Files, store and people.
		where := filepath.Join(w.dir, "instance")
		var made struct {
			Config        string `json:"config"`
			SecretKeyFile string `json:"secret_key_file"`
			APIKey        string `json:"api_key"`
			Admin         struct{ Email, Password, Token string }
		}
		w.answer(&made, "", "init", "--dir", where, "--admin", otto)
		require.Equal(t, filepath.Join(where, "holdpoint.yaml"), made.Config)
		require.Equal(t, filepath.Join(where, "holdpoint.key"), made.SecretKeyFile)
		require.Equal(t, otto, made.Admin.Email)
		require.Regexp(t, `^hp_\S{43}$`, made.APIKey)
		require.Regexp(t, `^hpu_\S{43}$`, made.Admin.Token)
		info, err := os.Stat(made.SecretKeyFile)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
		sample, err := os.ReadFile(made.Config)
		require.NoError(t, err)
		key, err := os.ReadFile(made.SecretKeyFile)
		require.NoError(t, err)
		for _, secret := range []string{made.APIKey, made.Admin.Password, made.Admin.Token, strings.TrimSpace(string(key))} {
			require.NotEmpty(t, secret)
			require.NotContains(t, string(sample), secret, "the policy holds no secret")
		}

		// Never overwritten.
		again := w.execute(nil, "", "init", "--dir", where, "--json")
		require.Equal(t, 4, again.code, again.stderr)
		for path, was := range map[string][]byte{made.Config: sample, made.SecretKeyFile: key} {
			is, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, was, is)
		}

		// The sample is active as it stands; its connector writes to a fixed port, which this test moves.
		w.dir = where
		w.answer(nil, "", "policy", "check")
		moved := strings.ReplaceAll(string(sample), "http://127.0.0.1:8471", w.provider.URL())
		require.NotEqual(t, string(sample), moved)
		s := w.serve(serving{})
		machine := client.New(s.url, made.APIKey)
		api := []string{"HOLDPOINT_URL=" + s.url, "HOLDPOINT_TOKEN=" + made.Admin.Token}
		command := func(into any, args ...string) {
			t.Helper()
			r := w.execute(api, "", append(args, "--json")...)
			require.Zero(t, r.code, "holdpoint %s: %s", strings.Join(args, " "), r.stderr)
			if into != nil {
				require.NoError(t, json.Unmarshal([]byte(r.stdout), into), r.stdout)
			}
		}
		active, err := client.New(s.url, made.Admin.Token).Policy(t.Context(), "active")
		require.NoError(t, err)
		require.Equal(t, string(sample), active.Document)
		require.NoError(t, os.WriteFile(made.Config, []byte(moved), 0o644))
		command(nil, "policy", "activate")

		// Who came into being, and with what.
		me, err := machine.Me(t.Context())
		require.NoError(t, err)
		require.Equal(t, "machine", me.Kind)
		require.ElementsMatch(t, []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead}, me.Scopes)
		me, err = client.New(s.url, made.Admin.Token).Me(t.Context())
		require.NoError(t, err)
		require.Equal(t, otto, me.Email)
		require.ElementsMatch(t, []holdpoint.Scope{holdpoint.ScopeDecide, holdpoint.ScopeOperate, holdpoint.ScopeSwitch, holdpoint.ScopeAdmin}, me.Scopes)
		require.Subset(t, me.Roles, append([]string{"approver"}, holdpoint.ReservedRoles...))

		// A fresh store sends nothing: both switches are off until their owner turns them on.
		state, err := client.New(s.url, made.Admin.Token).Switches(t.Context())
		require.NoError(t, err)
		require.True(t, state.Enabled)
		for _, sw := range state.Switches {
			require.False(t, sw.On, sw.Scope)
		}
		without := w.execute(api, "", "switch", "on", "global", "tenant")
		require.Equal(t, 2, without.code, "a switch is turned with a reason: %s", without.stderr)
		command(nil, "switch", "on", "global", "tenant", "--reason", "first day")

		// Claim, draft, approve.
		c, err := machine.Claim(t.Context(), client.ClaimRequest{Workflow: "ticket-reply", Key: "ticket-4711",
			Payload: json.RawMessage(`{"ticket": {"id": "4711"}, "subject": "Where is my parcel?", "customer": {"email": "` + jane + `"}}`)})
		require.NoError(t, err)
		require.Equal(t, holdpoint.Claimed, c.Outcome)
		d, err := machine.SubmitDraft(t.Context(), c.Run.ID, client.DraftRequest{Work: client.Work{Owner: c.Lease.Owner, Version: c.Lease.Version},
			Output: json.RawMessage(`{"label": "question", "reply": "It arrives tomorrow."}`), Model: model})
		require.NoError(t, err)
		require.Equal(t, "held", d.Outcome)
		stale := w.execute(api, "", "approvals", "approve", d.Approval.ID, "--digest", strings.Repeat("0", 64))
		require.Equal(t, 4, stale.code, stale.stderr)
		var decided client.Decided
		command(&decided, "approvals", "approve", d.Approval.ID, "--digest", d.Approval.Digest)
		require.Equal(t, holdpoint.ApprovalApproved, decided.Approval.State)

		// The effect is there, once, and the run shows it.
		var run client.Run
		eventually(t, soon, "the run is completed", func() bool {
			command(&run, "runs", "show", "ticket-4711")
			return run.State == holdpoint.RunCompleted
		})
		require.Equal(t, "yes", run.Answers.Sent)
		require.Equal(t, otto, run.Answers.ApprovedBy)
		require.Equal(t, 1, w.provider.CountPath("/tickets/4711/replies"))
		require.Len(t, w.provider.Writes(), 1)

		// Keys, people and tokens beside the running server.
		var minted struct{ ID, Key, Email, Password string }
		w.answer(&minted, "", "keys", "create", "--name", "n8n", "--scopes", "work,read", "--local")
		require.NotEmpty(t, minted.ID)
		me, err = client.New(s.url, minted.Key).Me(t.Context())
		require.NoError(t, err)
		require.Equal(t, minted.ID, me.ID)
		command(nil, "keys", "revoke", minted.ID)
		_, err = client.New(s.url, minted.Key).Me(t.Context())
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeUnauthenticated}, "revoked at once")
		command(&minted, "users", "add", ana)
		require.Equal(t, ana, minted.Email)
		require.NotEmpty(t, minted.Password)
		command(nil, "users", "grant", ana, "operator")
		w.answer(&minted, "", "users", "token", ana, "--scopes", "read,operate", "--local")
		me, err = client.New(s.url, minted.Key).Me(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"operator"}, me.Roles)
		foreign := w.execute(api, "", "users", "token", ana, "--scopes", "decide")
		require.Equal(t, 3, foreign.code, "over the API a person makes tokens of their own only: %s", foreign.stderr)

		doctor := w.execute([]string{"AI_ACTIONS_ENABLED=true"}, "", "doctor", "--json")
		require.Zero(t, doctor.code, doctor.stdout+doctor.stderr)
		s.stop()
	}, sqlite, postgres)
}

// TestExitCodes holds the commands to their exit codes and to one clear sentence each.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sqlite, governed)
	s := w.serve(serving{})
	as := func(token string) []string { return []string{"HOLDPOINT_URL=" + s.url, "HOLDPOINT_TOKEN=" + token} }
	runID, a := s.asked("ticket", "ticket-1")
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
	}{
		{"done", as(w.ottosToken), []string{"runs", "show", runID}, 0},
		{"failed: nobody there", []string{"HOLDPOINT_URL=http://127.0.0.1:1", "HOLDPOINT_TOKEN=" + w.ottosToken}, []string{"runs", "list"}, 1},
		{"usage: no such command", nil, []string{"runs", "shwo"}, 2},
		{"usage: no such flag", nil, []string{"serve", "--port", "80"}, 2},
		{"usage: no such setting", []string{"HOLDPOINT_EGRESS_ALLOW=everything"}, []string{"serve"}, 2},
		{"usage: no token", as(""), []string{"runs", "list"}, 2},
		{"not permitted: unknown token", as("hpu_" + strings.Repeat("A", 43)), []string{"runs", "list"}, 3},
		{"not permitted: no right", as(w.bensToken), []string{"switch", "on", "tenant", "--reason", "x"}, 3},
		{"conflict: stale digest", as(w.anasToken), []string{"approvals", "approve", a.ID, "--digest", strings.Repeat("0", 64)}, 4},
		{"not found: run", as(w.ottosToken), []string{"runs", "show", "nobody-sent-this"}, 5},
		{"not found: tenant", nil, []string{"keys", "list", "--local", "--tenant", "nobody"}, 5},
	} {
		r := w.execute(c.env, "", c.args...)
		require.Equal(t, c.code, r.code, "%s: %s", c.name, r.stderr)
		if c.code != 0 {
			require.NotEmpty(t, strings.TrimSpace(r.stderr), c.name)
			require.NotContains(t, r.stderr, "goroutine", c.name)
			require.NotContains(t, r.stderr, w.ottosToken, c.name)
		}
	}
	for _, args := range [][]string{{"--help"}, {"runs", "show", "--help"}, {"completion", "bash"}, {"version", "--json"}, {"policy", "matrix", "--json"}} {
		r := w.execute(nil, "", args...)
		require.Zero(t, r.code, r.stderr)
		require.NotEmpty(t, r.stdout)
	}
}

// TestPolicyRefused holds that what a later version brings is refused by name, with line and column, and not overlooked.
func TestPolicyRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sqlite, governed)
	for from, to := range map[string]string{
		"gate: {roles: [lead]}":  "gate: {roles: [lead], quorum: 2}",
		"kind: http":             "kind: n8n",
		"lead: {users: [" + ana:  "lead: {groups: [leads], users: [" + ana,
		"    repairs: 2\n":       "    repairs: 2\n    callback: {resume: true}\n",
		"redelivery_window: 30d": "redelivery_window: 30d\nmodels: {}",
	} {
		require.Contains(t, governed, from)
		path := filepath.Join(w.dir, "proposal.yaml")
		document := strings.ReplaceAll(strings.Replace(governed, from, to, 1), "PROVIDER", w.provider.URL())
		require.NoError(t, os.WriteFile(path, []byte(document), 0o644))
		r := w.execute(nil, "", "policy", "check", path)
		require.Equal(t, 1, r.code, to)
		require.Regexp(t, regexp.QuoteMeta(path)+`:\d+:\d+: error: .*\(not_in_this_version\)`, r.stdout)
		before, _ := w.query("SELECT COUNT(*) FROM policies")
		r = w.execute(nil, "", "policy", "activate", "--local", "--config", path)
		require.Equal(t, 1, r.code, to)
		after, _ := w.query("SELECT COUNT(*) FROM policies")
		require.Equal(t, before, after, "what is refused is not stored")
	}
}

// TestSecondServer holds that a SQLite store is served by one process, and that the second one says so.
func TestSecondServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sqlite, governed)
	s := w.serve(serving{})
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"migrate"}} {
		r := w.execute(nil, "", args...)
		require.Equal(t, 4, r.code, r.stderr)
		require.Equal(t, "holdpoint: another server holds this SQLite store; stop it first, or use PostgreSQL for several servers\n", r.stderr)
	}
	s.claim("ticket", "the-first-goes-on")
	s.kill()
	w.serve(serving{}).claim("ticket", "a-killed-server-leaves-no-lock")
}

// TestDemo plays the demo, which must hold every invariant by itself, whatever the settings around it say.
func TestDemo(t *testing.T) {
	t.Parallel()
	w := &world{t: t, dir: t.TempDir(), env: []string{"HOLDPOINT_DB=postgres://nobody@127.0.0.1:1/nothing"}}
	began := time.Now()
	r := w.execute(nil, "", "demo", "--auto", "--json")
	require.Zero(t, r.code, r.stderr+r.stdout)
	require.Less(t, time.Since(began), time.Minute)
	var said struct {
		Invariants []struct {
			ID     string
			Held   bool
			Detail string
		}
		Deliveries, Runs, Sends int
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &said))
	require.Len(t, said.Invariants, 12)
	for n, i := range said.Invariants {
		require.Equal(t, fmt.Sprintf("I%d", n+1), i.ID)
		require.True(t, i.Held, "%s: %s", i.ID, i.Detail)
		require.NotEmpty(t, i.Detail)
	}
	require.Greater(t, said.Deliveries, said.Runs)
	require.Positive(t, said.Sends)
	left, err := os.ReadDir(w.dir)
	require.NoError(t, err)
	require.Empty(t, left, "the demo leaves nothing where it was started")
}

var quickstart = regexp.MustCompile("(?s)\n```sh quickstart\n(.*?)```\n")

// TestQuickstart runs the README's first steps as they are written, in a copy of what is in the repository. Only the port
// differs, so that nothing else on the machine is in the way.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	source := repository(t)
	readme, err := os.ReadFile(filepath.Join(source, "README.md"))
	require.NoError(t, err)
	blocks := quickstart.FindAllSubmatch(readme, -1)
	require.Len(t, blocks, 1, "README.md has one block marked `sh quickstart`")
	script := string(blocks[0][1])
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	require.Contains(t, script, "127.0.0.1:8470")
	script = strings.ReplaceAll(script, "127.0.0.1:8470", address)

	dir := t.TempDir()
	copied := exec.CommandContext(t.Context(), "bash", "-c", `git -C "$1" ls-files -z --cached --others --exclude-standard | tar -C "$1" --null -T - --ignore-failed-read -cf - | tar -C "$2" -xf -`,
		"copy", source, dir)
	out, err := copied.CombinedOutput()
	require.NoError(t, err, string(out))

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOLDPOINT_") && !strings.HasPrefix(e, "AI_ACTIONS_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "HOLDPOINT_LISTEN="+address)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the server that the script leaves behind is in it
	cmd.WaitDelay = 10 * time.Second
	require.NoError(t, cmd.Start())
	group := cmd.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	require.NoError(t, cmd.Wait(), "%s\n%s", stdout.String(), stderr.String())

	var claimed client.Claim
	var held client.Draft
	var made struct {
		Admin struct{ Token string }
	}
	for name, into := range map[string]any{"claim.json": &claimed, "draft.json": &held, "init.json": &made} {
		text, err := os.ReadFile(filepath.Join(dir, "try", name))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, into), string(text))
	}
	require.Equal(t, holdpoint.Claimed, claimed.Outcome)
	require.Equal(t, "held", held.Outcome)
	status, _, page := call(t, http.DefaultClient, http.MethodGet, held.Approval.PageURL, "", "")
	require.Equal(t, http.StatusOK, status, "the draft's answer names a page that is there")
	require.NotContains(t, page, "It arrives tomorrow.", "and shows nothing to who has not signed in")
	run, err := client.New("http://"+address, made.Admin.Token).Run(t.Context(), claimed.Run.ID)
	require.NoError(t, err)
	require.Equal(t, holdpoint.RunApproved, run.State, "approved")
	require.Equal(t, "not_yet", run.Answers.Sent, "and still nothing has been sent")
	require.Contains(t, stdout.String(), claimed.Run.ID)
}
