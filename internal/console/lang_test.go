package console

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/lang"
)

// constants gives the values of a string type of the root package, from its source, so that a new one cannot be missed.
func constants(t *testing.T, typ string) []string {
	t.Helper()
	var out []string
	eachFile(t, "../../*.go", func(f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typ {
				return true
			}
			for _, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					s, err := strconv.Unquote(lit.Value)
					require.NoError(t, err)
					if s != "" {
						out = append(out, s)
					}
				}
			}
			return true
		})
	})
	require.NotEmpty(t, out, "no constant of type %s", typ)
	return out
}

func eachFile(t *testing.T, pattern string, visit func(*ast.File)) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		visit(f)
	}
}

// literals gives the string literals of Go files that match an expression.
func literals(t *testing.T, pattern, expression string) []string {
	t.Helper()
	re := regexp.MustCompile(expression)
	var out []string
	eachFile(t, pattern, func(f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil && re.MatchString(s) && !slices.Contains(out, s) {
					out = append(out, s)
				}
			}
			return true
		})
	})
	return out
}

// used gives every catalogue key that the console can ask for.
func used(t *testing.T) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	add := func(group string, names ...string) {
		for _, n := range names {
			keys[group+"."+n] = true
		}
	}
	pages, err := fs.Glob(files, "templates/*.html")
	require.NoError(t, err)
	call := regexp.MustCompile(`[{( ](t|n) "([a-z_.]+)"`)
	groups := map[string]bool{}
	for _, name := range pages {
		raw, err := files.ReadFile(name)
		require.NoError(t, err)
		for _, m := range call.FindAllStringSubmatch(string(raw), -1) {
			if m[1] == "n" {
				add(m[2], "one", "many")
			} else {
				keys[m[2]] = true
			}
		}
		for _, m := range regexp.MustCompile(`word "([a-z_.]+)"`).FindAllStringSubmatch(string(raw), -1) {
			groups[m[1]] = true
		}
	}
	for _, s := range literals(t, "*.go", `^(badge|title|login|password|conflict|outcome|next|sending|time)\.[a-z_.]*[a-z]$`) {
		keys[s] = true
	}
	for _, s := range []string{"days", "hours", "minutes", "seconds"} {
		add("unit."+s, "one", "many")
	}
	add("mark", markDirection, markInvisible, markControl, markSpace, markLookalike, markStacked, markInvalid, markPrivate, markDomain, markMixed, markCoded)

	effectReasons := literals(t, "../store/sqlstore/effect.go", `^(cancelled|withdrawn|predecessor|budget|expired|abandoned)$`)
	events := literals(t, "../store/sqlstore/*.go", `^(run|lease|step|draft|challenge|decision|effect|attempt|lookup|content)\.[a-z_]+$`)
	var runEvents []string
	for _, e := range append(events, "content.read") {
		if !slices.Contains(runEvents, e) {
			runEvents = append(runEvents, e)
		}
	}
	for _, s := range append(constants(t, "ApprovalState"), "created") {
		if s != "pending" {
			runEvents = append(runEvents, "approval."+s)
		}
	}
	closed := map[string][]string{
		"language": lang.Languages, "run.state": constants(t, "RunState"), "reason": constants(t, "Reason"),
		"approval.state": constants(t, "ApprovalState"), "approval.kind": {"draft", "review"}, "approval.kind_text": {"draft", "review"},
		"approval.why": {"gate", "refusal", "soft_failure", "no_effect"}, "decision": constants(t, "Decision"),
		"decision.does": constants(t, "Decision"), "decision.was": constants(t, "Decision"), "effect.state": constants(t, "EffectState"),
		"effect.reason": effectReasons, "hold": constants(t, "Hold"), "verdict": constants(t, "Verdict"), "verdict.does": constants(t, "Verdict"),
		"step.state": constants(t, "StepState"), "result": constants(t, "Result"), "class": constants(t, "FailureClass"),
		"consequence": {"internal_note", "crm_change", "customer_message", "account_change", "refund", "operational_finance"},
		"how":         {holdpoint.HowSession, holdpoint.HowToken, holdpoint.HowLink},
		"actor":       {holdpoint.ActorMachine, holdpoint.ActorPerson, holdpoint.ActorLocal, holdpoint.ActorSystem},
		"action":      {"claim", "replace", "cancel", "resend", "reconcile", "resolve", "cancel_effect", "resolve_step"},
		"event":       runEvents, "lane": {"waiting", "approved", "unknown", "held"}, "lane.text": {"waiting", "approved", "unknown", "held"},
		"answers.processed": {"yes", "no", "in_progress", "waiting"}, "answers.sent": {"yes", "no", "partly", "not_yet", "unknown"},
		"switch.kind": {"workflow", "connector", "type"}, "switch.name": {"global", "tenant", "messages"},
		"switch.means_on": {"global", "tenant", "messages"}, "switch.means_off": {"global", "tenant", "messages"},
		"tree.empty": {"object", "list"}, "next.hold": constants(t, "Hold"),
	}
	for _, c := range constants(t, "Code") {
		closed["error.title"], closed["error.text"] = append(closed["error.title"], kindOf(holdpoint.Code(c))), append(closed["error.text"], kindOf(holdpoint.Code(c)))
	}
	for _, e := range navigation {
		closed["nav"] = append(closed["nav"], e.Name)
	}
	require.Subset(t, slices.Collect(maps.Keys(closed)), slices.Collect(maps.Keys(groups)), "a template speaks of a group that this test does not know")
	for group, names := range closed {
		add(group, names...)
	}
	return keys
}

// Every text that the console can say is in every catalogue, and no catalogue holds one that nobody says.
func TestEveryTextIsTranslatedAndUsed(t *testing.T) {
	keys := used(t)
	for _, l := range lang.Languages {
		have := map[string]bool{}
		for _, k := range lang.Keys(l) {
			have[k] = true
			elsewhere := strings.HasPrefix(k, "mail.") || strings.HasPrefix(k, "sentence.") || strings.HasPrefix(k, "said.")
			require.True(t, keys[k] || elsewhere, "%s: nobody says %q", l, k)
		}
		for k := range keys {
			require.True(t, have[k], "%s: no text for %q", l, k)
		}
	}
}

// What the engine and the permission table say in English is known to the catalogues, sentence by sentence.
func TestWhatLowerLevelsSayIsTranslated(t *testing.T) {
	sentences := literals(t, "../engine/answers.go", `^[A-Z].*\.$`)
	sentences = append(sentences, literals(t, "../engine/view.go", `^[A-Z].*\.$`)...)
	sentences = append(sentences, literals(t, "../../permission.go", `^[A-Z].*\.$`)...)
	require.Greater(t, len(sentences), 30)
	for _, s := range sentences {
		said := regexp.MustCompile(`%[sd]`).ReplaceAllString(s, "X7")
		german, in := lang.Said("de", said)
		require.Equal(t, "de", in, "no translation for %q", s)
		require.NotEqual(t, said, german)
		require.Equal(t, strings.Contains(said, "X7"), strings.Contains(german, "X7"), "the argument is lost: %q", german)
	}
	for _, k := range lang.Keys("en") {
		if !strings.HasPrefix(k, "said.") {
			continue
		}
		english := strings.ReplaceAll(lang.Text("en", k), "%[1]s", "%s")
		require.Contains(t, sentences, english, "nobody says %q", k)
	}
	english, in := lang.Said("de", "Something new.")
	require.Equal(t, "Something new.", english)
	require.Equal(t, "en", in)
}

func TestNoPageSaysAKey(t *testing.T) {
	names, err := fs.Glob(files, "templates/*.html")
	require.NoError(t, err)
	for _, name := range names {
		raw, err := files.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, string(raw), "<script", name)
		require.NotContains(t, string(raw), "autofocus", name)
		require.NotContains(t, string(raw), "style=", name)
		require.NotContains(t, string(raw), "<img", name)
	}
	css, err := os.ReadFile("static/style.css")
	require.NoError(t, err)
	require.NotContains(t, string(css), "url(", "the style sheet loads nothing")
}
