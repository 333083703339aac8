! trace_fortran.f90 - BINDING is replaced by `mpi` or `mpi_f08`; 2 ranks.
program trace_fortran
  use BINDING
  implicit none
  integer :: rank, err, step, done, dims(2), counts(2), displs(2)
#ifdef F08
  type(MPI_Request) :: requests(2)
  type(MPI_Comm) :: grid
#else
  integer :: requests(2), grid
#endif
  logical :: periods(2), flag
  real(8) :: a(16), b(16), s
  call MPI_Init(err)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, err)
  dims = (/ 2, 1 /)
  periods = .true.
  call MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, .false., grid, err)
  a = rank
  do step = 1, 100
    call MPI_Irecv(b, 16, MPI_DOUBLE_PRECISION, 1 - rank, 5, grid, requests(1), err)
    call MPI_Isend(a, 16, MPI_DOUBLE_PRECISION, 1 - rank, 5, grid, requests(2), err)
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, err)
    s = sum(b)
    call MPI_Allreduce(MPI_IN_PLACE, s, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, err)
    call MPI_Irecv(b, 1, MPI_DOUBLE_PRECISION, 1 - rank, 6, grid, requests(1), err)
    call MPI_Send(a, 1, MPI_DOUBLE_PRECISION, 1 - rank, 6, grid, err)
    flag = .false.
    do while (.not. flag)
      call MPI_Test(requests(1), flag, MPI_STATUS_IGNORE, err)
    end do
  end do
  call MPI_Pcontrol(3)
  counts = 8
  displs = (/ 0, 8 /)
  call MPI_Alltoallv(a, counts, displs, MPI_DOUBLE_PRECISION, b, counts, displs, MPI_DOUBLE_PRECISION, grid, err)
  call MPI_Comm_free(grid, err)
  call MPI_Finalize(err)
end program
