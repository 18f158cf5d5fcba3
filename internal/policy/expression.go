package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
)

// Limits of one expression. Fail closed: beyond them it does not compile or gives no value.
const (
	maxExpression = 4096      // bytes of source
	maxCost       = 5_000_000 // CEL cost units of one evaluation
)

// The records that expressions may read beside `event` and `draft`, with their fields.
var (
	runFields    = []string{"id", "key", "workflow", "tenant"}
	effectFields = []string{"key", "reference", "target", "payload", "slot", "type", "run_id"}
)

// The two functions that keepLexemes puts into syntax trees. No source text can name them.
const (
	plainFunction  = "@plain"
	scalarFunction = "@scalar"
)

// newEnv makes a CEL environment with the standard library, string functions and the given dynamic variables. It has
// no clock and no source of randomness: an expression gives the same value whenever it is evaluated.
func newEnv(variables ...string) (*cel.Env, error) {
	t := cel.TypeParamType("T")
	identity := func(name string, f func(ref.Val) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.Overload(name+"_any", []*cel.Type{t}, t, cel.UnaryBinding(f)))
	}
	options := []cel.EnvOption{
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(50),
		ext.Strings(ext.StringsVersion(3)),
		identity(plainFunction, plain),
		identity(scalarFunction, scalar),
	}
	for _, v := range variables {
		options = append(options, cel.Variable(v, cel.DynType))
	}
	return cel.NewEnv(options...)
}

var (
	workflowEnv  = sync.OnceValues(func() (*cel.Env, error) { return newEnv("event", "draft", "run") })
	connectorEnv = sync.OnceValues(func() (*cel.Env, error) { return newEnv("effect") })
	lookupEnv    = sync.OnceValues(func() (*cel.Env, error) { return newEnv("response", "status") })
)

// expression is one compiled CEL expression. It is safe for concurrent use.
type expression struct {
	source  string
	reads   []string // the declared variables that it reads
	program cel.Program
	result  *cel.Type
}

// compile parses and type-checks source. The error is one sentence about the document, without any content.
func compile(env *cel.Env, source string) (*expression, error) {
	parsed, issues := env.Parse(source)
	if issues.Err() != nil {
		return nil, issueError(issues)
	}
	reads, err := inspect(parsed.NativeRep())
	if err != nil {
		return nil, err
	}
	keepLexemes(parsed.NativeRep())
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, issueError(issues)
	}
	program, err := env.Program(checked, cel.CostLimit(maxCost))
	if err != nil {
		return nil, errors.New("cannot be prepared")
	}
	return &expression{source: source, reads: reads, program: program, result: checked.OutputType()}, nil
}

// eval gives the expression's value. The error never carries a value that the expression has read.
func (x *expression) eval(vars map[string]any) (ref.Val, error) {
	v, _, err := x.program.Eval(vars)
	switch {
	case err == nil:
		return v, nil
	case strings.Contains(err.Error(), "no such key") || strings.Contains(err.Error(), "no such attribute"):
		return nil, fmt.Errorf("${%s} reads a field that is absent; guard it with has()", x.source)
	case strings.Contains(err.Error(), "no such overload"):
		return nil, fmt.Errorf("${%s} is applied to a value of another type; convert it first", x.source)
	case strings.Contains(err.Error(), "cost limit"):
		return nil, fmt.Errorf("${%s} needs too much work on this input; make it simpler", x.source)
	}
	return nil, fmt.Errorf("${%s} has no value on this input", x.source)
}

// issueError tells the first of CEL's complaints in one line.
func issueError(issues *cel.Issues) error {
	first := issues.Errors()[0]
	message := strings.ReplaceAll(first.Message, "\n", " ")
	message = strings.ReplaceAll(message, plainFunction, "argument")
	message = strings.ReplaceAll(message, scalarFunction, "argument")
	if len(message) > 300 {
		message = message[:300] + "…"
	}
	return fmt.Errorf("%s (at character %d of the expression)", message, first.Location.Column()+1)
}

// grows are the functions whose result can be the product of two inputs; they take constants only, so that no content
// makes a small expression fill the memory.
var grows = []string{"replace", "join"}

// inspect lists the variables that a parsed expression reads, and refuses fields that `run` and `effect` do not have and
// arguments that could make a result grow out of bounds.
func inspect(tree *celast.AST) (reads []string, err error) {
	celast.PreOrderVisit(tree.Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.IdentKind:
			if name := e.AsIdent(); !slices.Contains(reads, name) {
				reads = append(reads, name)
			}
		case celast.CallKind:
			call := e.AsCall()
			for _, arg := range call.Args() {
				if err == nil && slices.Contains(grows, call.FunctionName()) && arg.Kind() != celast.LiteralKind {
					err = fmt.Errorf("%s() takes constants as arguments", call.FunctionName())
				}
			}
		case celast.SelectKind:
			s := e.AsSelect()
			if s.Operand().Kind() != celast.IdentKind || err != nil {
				return
			}
			var known []string
			switch s.Operand().AsIdent() {
			case "run":
				known = runFields
			case "effect":
				known = effectFields
			default:
				return
			}
			if !slices.Contains(known, s.FieldName()) {
				err = fmt.Errorf("%s has no field %s; it has %s", s.Operand().AsIdent(), s.FieldName(), strings.Join(known, ", "))
			}
		}
	}))
	return reads, err
}

// passes are the calls that hand their arguments on unread, so that lexemes may stay: string() reads the lexeme itself.
var passes = []string{operators.Conditional, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.NotStrictlyFalse, "dyn", "string"}

// keepLexemes rewrites a parsed tree so that every function and operator receives plain numbers, while values that are
// only handed on keep their lexemes. Concatenation strips numbers but not what lists hold, so that map() and filter()
// keep lexemes too.
func keepLexemes(tree *celast.AST) {
	factory := celast.NewExprFactory()
	id := celast.MaxID(tree)
	strip := func(function string, e celast.Expr) celast.Expr {
		switch e.Kind() {
		case celast.IdentKind, celast.SelectKind, celast.ComprehensionKind, celast.ListKind, celast.MapKind:
		case celast.CallKind:
			if f := e.AsCall().FunctionName(); f != operators.Index && f != operators.Conditional && f != operators.Add && f != "dyn" {
				return e
			}
		default:
			return e
		}
		id++
		return factory.NewCall(id, function, e)
	}
	celast.PostOrderVisit(tree.Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() == celast.MapKind {
			entries := slices.Clone(e.AsMap().Entries())
			for i, entry := range entries {
				m := entry.AsMapEntry()
				entries[i] = factory.NewMapEntry(entry.ID(), strip(plainFunction, m.Key()), m.Value(), m.IsOptional())
			}
			e.SetKindCase(factory.NewMap(e.ID(), entries))
			return
		}
		if e.Kind() != celast.CallKind || slices.Contains(passes, e.AsCall().FunctionName()) {
			return
		}
		call := e.AsCall()
		args := slices.Clone(call.Args())
		function, from := plainFunction, 0
		switch call.FunctionName() {
		case operators.Add:
			function = scalarFunction
		case operators.Index:
			from = 1
		}
		for i := from; i < len(args); i++ {
			args[i] = strip(function, args[i])
		}
		if call.IsMemberFunction() {
			e.SetKindCase(factory.NewMemberCall(e.ID(), call.FunctionName(), strip(function, call.Target()), args...))
			return
		}
		e.SetKindCase(factory.NewCall(e.ID(), call.FunctionName(), args...))
	}))
}
