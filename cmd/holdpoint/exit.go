package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/holdpoint/holdpoint"
)

// The exit codes.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitNotAllowed = 3
	exitConflict   = 4
	exitNotFound   = 5
)

// usageError is a command line, or a setting, that must be written differently.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errFindings ends a command that has already said everything and still failed: a check with findings.
var errFindings = errors.New("findings")

// exitCodes gives each code that does not simply mean failed.
var exitCodes = map[int][]holdpoint.Code{
	exitUsage: {holdpoint.CodeInvalidRequest, holdpoint.CodeInvalidJSON, holdpoint.CodeInvalidKey, holdpoint.CodeTooDeep, holdpoint.CodeReasonRequired},
	exitNotAllowed: {holdpoint.CodeUnauthenticated, holdpoint.CodeForbidden, holdpoint.CodeInsufficientScope, holdpoint.CodeCrossOrigin,
		holdpoint.CodeBadNonce, holdpoint.CodePasswordChange},
	exitConflict: {holdpoint.CodeBusy, holdpoint.CodeLeaseLost, holdpoint.CodeLeaseOtherExecution, holdpoint.CodeInProgress, holdpoint.CodeUncertain,
		holdpoint.CodeStaleDigest, holdpoint.CodeAlreadyDecided, holdpoint.CodePolicyMoved, holdpoint.CodeNotAllowedNow, holdpoint.CodeNoPolicy,
		holdpoint.CodeExists, holdpoint.CodeMismatch, holdpoint.CodeDerivedKey},
	exitNotFound: {holdpoint.CodeNotFound, holdpoint.CodeUnknownWorkflow},
}

// exitCode gives the exit code of an error.
func (p *program) exitCode(err error) int {
	var usage usageError
	var known *holdpoint.Error
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage) || !p.working:
		return exitUsage
	case errors.As(err, &known):
		for exit, codes := range exitCodes {
			if slices.Contains(codes, known.Code) {
				return exit
			}
		}
	}
	return exitFailed
}

// ownWords gives an error's sentence without its code and its cause.
func ownWords(err error) string {
	if known := (*holdpoint.Error)(nil); errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}

// end tells an error on the diagnostics stream, one sentence or one JSON object, and gives the exit code.
func (p *program) end(err error) int {
	code := p.exitCode(err)
	if err == nil || errors.Is(err, errFindings) {
		return code
	}
	var known *holdpoint.Error
	if p.json {
		said := map[string]any{"code": "failed", "message": err.Error()}
		switch {
		case errors.As(err, &known):
			said["code"], said["message"] = known.Code, known.Message
			if len(known.Detail) > 0 {
				said["detail"] = known.Detail
			}
		case code == exitUsage:
			said["code"] = "usage"
		}
		if b, merr := json.Marshal(said); merr == nil {
			_, _ = fmt.Fprintln(p.err, visible(string(b)))
			return code
		}
	}
	message := ownWords(err)
	if !errors.As(err, &known) && errors.Is(err, context.Canceled) {
		message = "stopped before it was done"
	}
	_, _ = fmt.Fprintln(p.err, visible("holdpoint: "+message))
	return code
}
