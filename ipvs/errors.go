package ipvs

import "errors"

// What a driver answers, wrapped with the op, when the object of an op does not exist. Deleting the absent is success.
var (
	ErrNoVirtual = errors.New("no such virtual server")
	ErrNoReal    = errors.New("no such real server")
)

// ErrInvalid is wrapped by the error of an op that no kernel can carry out faithfully.
var ErrInvalid = errors.New("invalid")

// Why a node cannot do IPVS at all, or not with the wanted scheduler. The text of the error that wraps one names the
// mend.
var (
	ErrNoModule    = errors.New("the kernel has no IPVS")
	ErrNoScheduler = errors.New("no such IPVS scheduler")
	ErrPermission  = errors.New("no permission to change IPVS")
)

// Each calls do for the ops in order and returns those that succeeded. It goes on after an error, so that one object
// that fails does not hold up the rest; only the ops that follow the failed adding of their own virtual server are
// left out. The errors are joined; each names its op.
func Each(ops []Op, do func(Op) error) ([]Op, error) {
	var done []Op
	var errs []error
	missing := make(map[Key]bool)
	for _, op := range ops {
		if missing[op.Virtual] {
			continue
		}
		if err := do(op); err != nil {
			missing[op.Virtual] = op.Action == AddVirtual
			errs = append(errs, err)
			continue
		}
		done = append(done, op)
	}
	return done, errors.Join(errs...)
}
