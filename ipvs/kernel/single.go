package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// one carries out one op. Adding an existing object edits it.
func (k *Kernel) one(op ipvs.Op) error {
	service, destination := serviceOf(op.Virtual, op.Settings), destinationOf(op.Real, op.RealServer)
	var err error
	switch op.Action {
	case ipvs.AddVirtual:
		if err = k.library.NewService(service); err == unix.EEXIST {
			err = k.library.UpdateService(service)
		}
	case ipvs.EditVirtual:
		err = k.library.UpdateService(service)
	case ipvs.DeleteVirtual:
		err = k.library.DelService(service)
	case ipvs.AddReal:
		if err = k.library.NewDestination(service, destination); err == unix.EEXIST {
			err = k.library.UpdateDestination(service, destination)
		}
	case ipvs.EditReal:
		err = k.library.UpdateDestination(service, destination)
	case ipvs.DeleteReal:
		err = k.library.DelDestination(service, destination)
	}
	return explainOp(op, err)
}
