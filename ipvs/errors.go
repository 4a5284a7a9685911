package ipvs

import "errors"

// Errors of a driver, wrapped with the op, if the object of an op does not exist. Deleting the absent is success.
var (
	ErrNoVirtual = errors.New("no such virtual server")
	ErrNoReal    = errors.New("no such real server")
)

// ErrInvalid is wrapped by the error of an op that no kernel can carry out as specified.
var ErrInvalid = errors.New("invalid")

// Reasons why a node cannot do IPVS at all, or not with the wanted scheduler. The text of the wrapping error includes
// the remediation.
var (
	ErrNoModule    = errors.New("the kernel has no IPVS")
	ErrNoScheduler = errors.New("no such IPVS scheduler")
	ErrPermission  = errors.New("no permission to change IPVS")
)

// ErrNoTunnel is wrapped by the error of a node that cannot forward through tunnels. The text of the wrapping error
// includes the remediation.
var ErrNoTunnel = errors.New("this node cannot use tunnels")

// ErrNoTunnelIPv6 is wrapped instead if that is so for IPv6 virtual servers only.
var ErrNoTunnelIPv6 = errors.New("this node cannot use tunnels for IPv6")

// Each calls do for the ops in order and returns those that succeeded. It continues after an error, so that one failing
// object does not block the others. Only the ops that follow the failed adding of their own virtual server are skipped.
// The errors are joined; each names its op.
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
