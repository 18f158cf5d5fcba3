package e2e

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/killpoint"
)

//go:generate go test -count=1 -run ^TestFailureModes$ . -update

var update = flag.Bool("update", false, "write the generated document")

// class is what a connector can say about a request whose answer is lost.
type class string

const (
	plain  class = "plain"   // nothing
	keyed  class = "key"     // it was proved that the provider honours the key
	looked class = "look_up" // the provider can be asked
	both   class = "key_and_look_up"
)

var classes = []class{plain, keyed, looked, both}

// outcome is where a crash leads when nobody does anything but start the server again.
type outcome struct {
	state    holdpoint.EffectState
	requests int // that arrived at the provider, in all lives
	objects  int // that it made of them
}

// crashRow is a moment in the life of an effect at which the server is killed.
type crashRow struct {
	name     string // of the subtest
	point    string // "" if the test kills from outside
	provider string // what the provider does with the first request: accepts, refuses or accepts and stalls
	stands   string // what is durable at that moment
	want     map[class]outcome
}

// each says what each class comes to, in the order of classes.
func each(outcomes ...outcome) map[class]outcome {
	all := map[class]outcome{}
	for i, c := range classes {
		all[c] = outcomes[i]
	}
	return all
}

var (
	sent       = outcome{holdpoint.EffectCompleted, 1, 1}
	sentTwice  = outcome{holdpoint.EffectCompleted, 2, 1}
	unsent     = outcome{holdpoint.EffectUnknown, 0, 0}
	arrived    = outcome{holdpoint.EffectUnknown, 1, 1}
	turnedAway = outcome{holdpoint.EffectUnknown, 1, 0}
)

// crashTable is what a kill -9 on the way of an effect leads to. TestCrashTable kills the real binary for each cell; the
// document shows the same rows.
var crashTable = []crashRow{
	{"dispatch.before_attempt", "dispatch.before_attempt", "accepts", "the decision and the effect's lease", each(sent, sent, sent, sent)},
	{"store.begin_attempts.before_commit", "store.begin_attempts.before_commit", "accepts", "the decision and the effect's lease", each(sent, sent, sent, sent)},
	{"store.begin_attempts.committed", "store.begin_attempts.committed", "accepts", "the attempt; no byte has left, and nobody can know that", each(unsent, sent, sent, sent)},
	{"dispatch.attempt_committed", "dispatch.attempt_committed", "accepts", "the attempt; no byte has left, and nobody can know that", each(unsent, sent, sent, sent)},
	{"httpcall.before_first_byte", "httpcall.before_first_byte", "accepts", "the attempt; connected, no byte has left", each(unsent, sent, sent, sent)},
	{"provider_accepted", "", "accepts and stalls", "the attempt, and the provider's object; its answer is on the way", each(arrived, sentTwice, sent, sentTwice)},
	{"dispatch.answer_received", "dispatch.answer_received", "accepts", "the attempt, and the provider's object", each(arrived, sentTwice, sent, sentTwice)},
	{"answer_received_refusal", "dispatch.answer_received", "refuses", "the attempt; the provider has refused and made nothing", each(turnedAway, sentTwice, sentTwice, sentTwice)},
	{"store.settle_attempts.before_commit", "store.settle_attempts.before_commit", "accepts", "the attempt, and the provider's object", each(arrived, sentTwice, sent, sentTwice)},
	{"store.settle_attempts.committed", "store.settle_attempts.committed", "accepts", "everything", each(sent, sent, sent, sent)},
}

// lookupPoints are the points at which the server is killed while it finds out what the kills of crashTable left in doubt.
// They change no outcome.
var lookupPoints = []struct {
	point string
	of    []class
}{
	{"dispatch.before_look_up", []class{looked}},
	{"dispatch.look_up_answered", []class{looked}},
	{"store.settle_look_up.before_commit", classes},
	{"store.settle_look_up.committed", classes},
}

// crashedCall is a call of a person, a workflow or an operator whose server is killed inside it.
type crashedCall struct {
	name   string
	verb   string // of the store
	repeat string // what the same call answers after the restart, when the first one was committed
	stands string // what stands then
}

// crashedCalls are the rows of TestCrashedCall. Before the commit nothing of the call stands and its repetition is the
// first one; the table says what holds after the commit, with the answer lost.
var crashedCalls = []crashedCall{
	{"claim", "claim_runs", "claimed, with the same owner and version", "one run, one lease, one attempt"},
	{"renew", "renew_lease", "the lease, extended from now", "the same version"},
	{"begin_step", "begin_step", "in_progress: this very lease has begun it", "the step runs once more only under another lease; a declared side effect becomes uncertain there"},
	{"finish_step", "finish_step", "the finished step", "one result"},
	{"invalid_draft", "reject_draft", "the same faults", "one repair is spent"},
	{"draft", "hold_draft", "held, with the same approval", "one draft, one approval, one planned effect"},
	{"fail", "end_work", "the run as it stands", "one failure"},
	{"decide", "decide", "the decision, repeated", "one decision, one released effect"},
	{"withdraw", "withdraw_approval", "withdrawn, as it stands", "the approval is withdrawn, its run has ended"},
	{"cancel_run", "cancel_run", "not_allowed_now", "the run has ended, cancelled"},
	{"replace", "replace_run", "the same new run", "one correction, linked in both directions"},
	{"cancel_effect", "cancel_effect", "not_allowed_now", "the effect has failed, cancelled; nothing leaves"},
	{"switch_off", "set_switch", "the switch, off", "nothing begins under it"},
	{"store_policy", "store_policy", "the same hash", "one policy"},
	{"activate_policy", "activate_policy", "policy_moved, naming the active one", "the new policy is active"},
	{"add_person", "create_person", "exists", "the person, whose password nobody has: set another"},
	{"grant_role", "grant_role", "done", "the grant"},
	{"create_key", "create_key", "another key", "a key that nobody holds: revoke it"},
	{"revoke_key", "revoke_key", "done", "the key opens nothing"},
}

// points are those at which one call is killed. Between the commit and the answer nothing is written, so that a few calls
// stand for all there.
func (c crashedCall) points() []string {
	points := []string{"store." + c.verb + ".before_commit", "store." + c.verb + ".committed"}
	if slices.Contains([]string{"claim", "draft", "decide"}, c.name) {
		points = append(points, "api.before_answer")
	}
	return points
}

// laneRow is a moment in the life of a message, or of a store that is being made.
type laneRow struct{ point, stands, then string }

// messageTable are the rows of TestCrashedMessage.
var messageTable = []laneRow{
	{"dispatch.message_prepared", "the message's lease and the hash of a link's token; nothing has left", "delivered once, a minute later, with another link"},
	{"dispatch.message_accepted", "the lease; the receiver has the message", "delivered twice under one id, by which the receiver knows it, each time with a link of its own"},
	{"store.settle_message.before_commit", "the lease; the receiver has the message", "delivered twice under one id"},
	{"store.settle_message.committed", "everything", "delivered once"},
}

// initTable are the rows of TestCrashedInit.
var initTable = []laneRow{
	{"init.files_written", "policy, schema and secret key in their files", "init refuses to overwrite them; once they are moved away, it starts anew"},
	{"app.locked", "the files and an empty lock file, which the kernel has freed", "as before"},
	{"store.migrate.statement", "the files; the schema's transaction is gone", "as before"},
	{"store.migrate.committed", "the files and an empty store of this version", "as before, with the SQLite file moved away too; in PostgreSQL the empty schema is used"},
	{"store.create_tenant.committed", "the files and a store that only their secret key opens", "as before, with the SQLite file moved away too; in PostgreSQL init refuses a database that holds a tenant, and is given an empty one"},
	{"init.before_answer", "everything; key, password and token were never shown", "users token with --local makes another token, and that makes another key"},
}

func crashTest(c class, r crashRow) string {
	return "TestCrashTable/…/" + string(c) + "/" + r.name
}

// TestFailureModes holds docs/failure-modes.md to the tables above.
func TestFailureModes(t *testing.T) {
	path := filepath.Join("..", "docs", "failure-modes.md")
	want := failureModes()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run go generate ./e2e")
}

// TestFailureModesAreTested holds that each row names points that exist, and that each test that the document names does.
func TestFailureModesAreTested(t *testing.T) {
	points := map[string]bool{"": true}
	for _, p := range killpoint.Points() {
		points[p] = true
	}
	var named []string
	for _, r := range crashTable {
		named = append(named, r.point)
		require.Len(t, r.want, len(classes), r.name)
	}
	for _, p := range lookupPoints {
		named = append(named, p.point)
	}
	for _, c := range crashedCalls {
		named = append(named, c.points()...)
	}
	for _, r := range append(append([]laneRow{}, messageTable...), initTable...) {
		named = append(named, r.point)
	}
	for _, p := range named {
		require.True(t, points[p], "%s is no point", p)
	}

	exists := map[string]bool{}
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				exists[fn.Name.Name] = true
			}
		}
	}
	words := strings.FieldsFunc(failureModes(), func(r rune) bool { return r == '`' || r == '/' || r == ' ' || r == '\n' })
	tests := 0
	for _, w := range words {
		if strings.HasPrefix(w, "Test") {
			tests++
			require.True(t, exists[w], "%s is no test", w)
		}
	}
	require.Greater(t, tests, len(classes)*len(crashTable))
}

func failureModes() string {
	var b strings.Builder
	b.WriteString(`# What a crash leaves

Generated from the tables in e2e/kill_table_test.go (` + "`go generate ./e2e`" + `); ` + "`make crash`" + ` kills the real binary with kill -9 for
every row, on SQLite and on PostgreSQL, starts it again and compares. In the name of a test, … is sqlite or postgres.
`)
	b.WriteString("\nEvidence is written in the transaction of what it tells, so that no point lies between the two.\n")
	b.WriteString(`
## On the way of an effect

What becomes of the effect when the server is only started again: state, requests that reached the provider, objects that
it made of them. A lease of the dead server outlasts it by up to the send window, the connector's time-out and five
seconds. Where the state is unknown, a person looks at the provider and says sent or not_sent; after not_sent it is
sent once. A repetition carries the same key and the same bytes.

`)
	b.WriteString("| killed at | what stands then |")
	for _, c := range classes {
		b.WriteString(" " + strings.ReplaceAll(string(c), "_", " ") + " |")
	}
	b.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(classes)) + "\n")
	for _, r := range crashTable {
		fmt.Fprintf(&b, "| %s | %s |", moment(r), r.stands)
		for _, c := range classes {
			o := r.want[c]
			who := "nobody acts"
			if o.state == holdpoint.EffectUnknown {
				who = "a person acts"
			}
			fmt.Fprintf(&b, " %s, %s, %s; %s<br>`%s` |", o.state, count(o.requests, "request"), count(o.objects, "object"), who, crashTest(c, r))
		}
		b.WriteByte('\n')
	}
	b.WriteString(`
plain: the provider cannot be asked and honours no key. key: it was proved that the provider honours the key. look up: the provider
can be asked by our reference. A look-up that is killed is made again and changes nothing above:

| killed at | classes | test |
| --- | --- | --- |
`)
	for _, p := range lookupPoints {
		for _, c := range p.of {
			fmt.Fprintf(&b, "| `%s` | %s | `TestCrashTable/…/%s/%s` |\n", p.point, strings.ReplaceAll(string(c), "_", " "), c, p.point)
		}
	}
	b.WriteString(`
## Inside a call

The caller sees a broken connection and repeats the identical call. Killed before the commit, nothing stands and the
repetition is the first one. Killed after it, at ` + "`store.VERB.committed` or `api.before_answer`" + `:

| call | verb | the repetition answers | what stands | test |
| --- | --- | --- | --- | --- |
`)
	for _, c := range crashedCalls {
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | `TestCrashedCall/…/%s` |\n", strings.ReplaceAll(c.name, "_", " "), c.verb, c.repeat, c.stands, c.name)
	}
	for _, table := range []struct {
		title, test string
		rows        []laneRow
	}{{"In the message lane", "TestCrashedMessage/…", messageTable}, {"While a store is made", "TestCrashedInit/…", initTable}} {
		fmt.Fprintf(&b, "\n## %s\n\n| killed at | what stands then | after the restart | test |\n| --- | --- | --- | --- |\n", table.title)
		for _, r := range table.rows {
			fmt.Fprintf(&b, "| `%s` | %s | %s | `%s/%s` |\n", r.point, r.stands, r.then, table.test, r.point)
		}
	}
	b.WriteString("\n## All points\n\n`TestKill` kills at each of them in turn while clients work (`make kill`). Around the commit of each verb lie " +
		"`store.VERB.before_commit` and `store.VERB.committed`.\n\nVerbs: ")
	b.WriteString("`" + strings.Join(killpoint.Verbs, "`, `") + "`.\n\nOther points: `" + strings.Join(killpoint.Lines, "`, `") + "`.\n")
	return b.String()
}

func moment(r crashRow) string {
	switch {
	case r.point == "":
		return "while the provider holds the request"
	case r.provider == "refuses":
		return "`" + r.point + "`, a refusal"
	}
	return "`" + r.point + "`"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
